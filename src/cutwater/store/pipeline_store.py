"""Everything a pipeline keeps in a store, opened together.

Each part reads and writes one kind of object. `PipelineStore` only combines the parts, so that
every command that runs, inspects or repairs a pipeline opens the same parts in the same way.
"""

from dataclasses import dataclass

from cutwater.ids import CheckpointId, Generation, PipelineId
from cutwater.protocol.recovery import lacks_decision
from cutwater.store.backends.backend import Backend
from cutwater.store.blobs.blobs import Blobs
from cutwater.store.blobs.local_cache import BlobCache
from cutwater.store.records.attempts import Attempts
from cutwater.store.records.commits import Commits
from cutwater.store.records.decision_log import DecisionLog
from cutwater.store.records.manifests import Manifests
from cutwater.store.records.reports import Reports
from cutwater.store.records.requests import Requests
from cutwater.store.records.savepoints import Savepoints
from cutwater.store.records.starts import Starts
from cutwater.store.records.targets import Targets


@dataclass(frozen=True, slots=True)
class PipelineStore:
    """One pipeline in one store; its log is as this process has read it."""

    backend: Backend
    pipeline: PipelineId
    log: DecisionLog
    manifests: Manifests
    attempts: Attempts
    commits: Commits
    savepoints: Savepoints
    reports: Reports
    requests: Requests
    targets: Targets
    starts: Starts

    @classmethod
    def of(cls, backend: Backend, pipeline: PipelineId) -> "PipelineStore":
        """Nothing is read yet."""
        return cls(
            backend,
            pipeline,
            DecisionLog(backend, pipeline),
            Manifests(backend, pipeline),
            Attempts(backend, pipeline),
            Commits(backend, pipeline),
            Savepoints(backend, pipeline),
            Reports(backend, pipeline),
            Requests(backend, pipeline),
            Targets(backend, pipeline),
            Starts(backend, pipeline),
        )

    def lacks_decision(self) -> bool:
        """Return whether sinks have committed a decision that the log no longer holds."""
        through = self.commits.through(self.log.read())
        # Read the log again: a commit follows its decision, and another process may just have
        # written both.
        return lacks_decision(self.log.read(), through)

    def blobs(
        self,
        generation: Generation,
        cache: BlobCache | None = None,
        attempt: CheckpointId | None = None,
    ) -> Blobs:
        """Open the objects of one attempt of a generation; what the cache holds is not fetched."""
        return Blobs(self.backend, self.pipeline, generation, cache, attempt)

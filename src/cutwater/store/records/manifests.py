"""Manifests: what each cut consists of, written before the decision that names it by hash.

A manifest alone decides nothing (PROTOCOL.md section 9): only the decision log says which of them
count, and by which hash. Written once per attempt, since its number is taken by one process only
(docs/adr/0003). Upholds I7 and I8.
"""

from collections.abc import Iterator

from cutwater.errors import Corrupt
from cutwater.ids import CheckpointId, PipelineId
from cutwater.protocol.cut import Cut
from cutwater.store.backends.backend import Backend, write_once
from cutwater.store.backends.directories import is_below, is_name
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.cut_codec import MANIFEST
from cutwater.store.records.envelope import decode, digest, encode


class Manifests:
    """The manifests of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def publish(self, cut: Cut) -> str:
        """Write a cut's manifest and return its hash, for the decision.

        The same cut may be published again after any error.

        Raises:
            Conflict: If another cut has been published under its number.
            Unavailable: If it was certainly not written.
            OutcomeUnknown: If it may or may not have been written.
        """
        path = self._paths.manifest(cut.checkpoint_id)
        data = encode(MANIFEST, path, cut)
        write_once(self._backend, path, data)
        return digest(data)

    def read(self, checkpoint_id: CheckpointId, sha256: str | None = None) -> Cut:
        """Read a manifest.

        Args:
            checkpoint_id: Its number.
            sha256: The hash that its decision names. None, for a cut nobody has decided, checks
                the manifest by itself only.

        Raises:
            NotFound: If there is none.
            Corrupt: If it is damaged, or not the one that was decided.
            NewerFormat: If it is of a newer Cutwater.
            Unavailable: If the store does not answer.
        """
        path = self._paths.manifest(checkpoint_id)
        data = self._backend.read(path)
        cut = decode(MANIFEST, path, data)
        if sha256 is not None and digest(data) != sha256:
            raise Corrupt(path, f"its hash is not {sha256}, which was decided")
        stray = next(_stray_names(cut), None)
        if stray is not None:
            raise Corrupt(path, f"{stray!r} would lead out of the directory that it belongs to")
        return cut

    def ids(self) -> tuple[CheckpointId, ...]:
        """Return the numbers of all manifests in the store, decided or not, in order.

        Raises:
            Corrupt: If there is something else among them.
            Unavailable: If the store does not answer.
        """
        found = self._backend.list(self._paths.manifests)
        return tuple(sorted(self._paths.id_of_manifest(path) for path in found))


def _stray_names(cut: Cut) -> Iterator[str]:
    """Find names in a cut that are made into paths of files and must not be."""
    for step, snapshot in cut.snapshots.items():
        yield from (name for name in (step, snapshot.step) if not is_name(name))
        yield from (ref.sha256 for ref in sorted(snapshot.blobs) if not is_name(ref.sha256))
        for part in snapshot.in_flight:
            for recorded in part.events:
                yield from (name for name in recorded.event.files if not is_below(name))

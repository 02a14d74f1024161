"""Reports of attempts and recoveries: what people are told, written after the fact.

Nothing is ever decided from a report. The driver writes one when an attempt or a recovery is over,
never on the way to a decision, and losing one loses nothing but numbers on a screen: the decision
log alone says which checkpoints there are. Old ones are deleted without asking anybody.
"""

from enum import Enum
from typing import Final

import msgspec

from cutwater.errors import Corrupt, NewerFormat, NotFound
from cutwater.ids import CheckpointId, Generation, PipelineId, StepId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.envelope import decode, encode, plain_record

KEPT: Final = 1_000
"""How many reports of each kind `trim` leaves."""


class AttemptStatus(Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"


class StepReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step's part of an attempt.

    Attributes:
        start_delay_ms: From the attempt's start to the first barrier that the step saw.
        alignment_ms: From there to the barrier that it sent on.
        sync_ms: How long its files were being pinned, while it could not go on.
        async_ms: How long they were being stored, while it went on.
        end_to_end_ms: From the attempt's start to the acknowledgement.
        uploaded_bytes: What was stored anew.
        state_bytes: Its state, in full.
        in_flight_bytes: What was in flight before it.
        rows: How many rows it had put out in its generation before its barrier; None if nobody
            counted.
    """

    start_delay_ms: int
    alignment_ms: int
    sync_ms: int
    async_ms: int
    end_to_end_ms: int
    uploaded_bytes: int
    state_bytes: int
    in_flight_bytes: int
    rows: int | None = None


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt went.

    Attributes:
        checkpoint_id: Its number.
        generation: Who made it.
        status: Whether it became a checkpoint, as far as its driver knew.
        name: The savepoint's name, if it is one.
        started_at_ms: When it began.
        duration_ms: From there to its decision, or to its failure.
        committed_ms: From its start until all sinks had committed; None if they had nothing to
            do, or nobody knows.
        unaligned: Whether a barrier overtook data.
        commit_point: Whether sinks committed at it.
        uploaded_bytes: What was stored anew for it.
        state_bytes: All that going back to it needs.
        in_flight_bytes: The part of it that was in flight.
        failure: Why it failed; empty otherwise.
        steps: Its steps, as far as they had acknowledged.
    """

    checkpoint_id: CheckpointId
    generation: Generation
    status: AttemptStatus
    name: str | None
    started_at_ms: int
    duration_ms: int
    committed_ms: int | None
    unaligned: bool
    commit_point: bool
    uploaded_bytes: int
    state_bytes: int
    in_flight_bytes: int
    failure: str
    steps: dict[StepId, StepReport]


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a generation came to run, phase by phase.

    Attributes:
        generation: The generation it began.
        checkpoint_id: Where it began; None for an empty start.
        started_at_ms: When the recovery began.
        reason: What made it necessary; empty for the start of a process.
        choose_ms: Claiming the pipeline, finding its last cut and checking it byte by byte.
        commit_replay_ms: Repeating decided commits.
        fetch_ms: Bringing state and in-flight data back.
        start_ms: Calling the steps' functions and starting their queries.
        first_batch_ms: From then to the first batch that was finished; None if there was none.
        repeated_commits: How many decided commits were repeated.
        state_bytes: What the cut holds.
        linked_bytes: What of it, and of its bundles, was found on this machine.
        fetched_bytes: What came from the store.
    """

    generation: Generation
    checkpoint_id: CheckpointId | None
    started_at_ms: int
    reason: str
    choose_ms: int
    commit_replay_ms: int
    fetch_ms: int
    start_ms: int
    first_batch_ms: int | None
    repeated_commits: int
    state_bytes: int
    linked_bytes: int = 0
    fetched_bytes: int = 0

    @property
    def total_ms(self) -> int:
        """From the beginning to the first batch, or as far as it came."""
        phases = (self.choose_ms, self.commit_replay_ms, self.fetch_ms, self.start_ms)
        return sum(phases) + (self.first_batch_ms or 0)


REPORT: Final = plain_record("report", AttemptReport)
RECOVERY: Final = plain_record("recovery", RecoveryReport)


class Reports:
    """The reports of one pipeline. One that cannot be read counts as lost."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def write(self, report: AttemptReport | RecoveryReport) -> None:
        """Write a report, replacing an earlier one of the same attempt or recovery.

        Raises:
            StoreError: If it could not be written; it is lost.
        """
        if isinstance(report, AttemptReport):
            path = self._paths.report(report.checkpoint_id)
            self._backend.put(path, encode(REPORT, path, report))
        else:
            path = self._paths.recovery(report.generation)
            self._backend.put(path, encode(RECOVERY, path, report))

    def attempt(self, checkpoint_id: CheckpointId) -> AttemptReport | None:
        """Read how an attempt went; None if nobody can say.

        Raises:
            Unavailable: If the store does not answer.
        """
        path = self._paths.report(checkpoint_id)
        try:
            return decode(REPORT, path, self._backend.read(path))
        except (NotFound, Corrupt, NewerFormat):
            return None

    def recovery(self, generation: Generation) -> RecoveryReport | None:
        """Read how the recovery that began a generation went; None if nobody can say.

        Raises:
            Unavailable: If the store does not answer.
        """
        path = self._paths.recovery(generation)
        try:
            return decode(RECOVERY, path, self._backend.read(path))
        except (NotFound, Corrupt, NewerFormat):
            return None

    def recoveries(self) -> tuple[RecoveryReport, ...]:
        """Read how all recoveries went that anybody can tell of, oldest first.

        Raises:
            Corrupt: If there is something else among them.
            Unavailable: If the store does not answer.
        """
        paths = self._backend.list(self._paths.recoveries)
        found = (self.recovery(self._paths.generation_of_recovery(path)) for path in paths)
        return tuple(report for report in found if report is not None)

    def trim(self, keep: int = KEPT) -> int:
        """Delete all but the newest reports of each kind; return how many went.

        Raises:
            StoreError: If they cannot be listed or deleted now.
        """
        old = [
            path
            for prefix in (self._paths.reports, self._paths.recoveries)
            for path in self._backend.list(prefix)[:-keep]
        ]
        for path in old:
            self._backend.delete(path)
        return len(old)

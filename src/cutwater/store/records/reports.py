"""Reports of attempts and recoveries: information for users, written afterwards.

No decision depends on a report. The driver writes a report after an attempt or a recovery has
ended, never before a decision. A lost report only loses numbers on a screen: the decision log alone
determines which checkpoints exist. Old reports are deleted automatically.
"""

from enum import Enum
from typing import Final

import msgspec

from cutwater.ids import CheckpointId, Generation, StepId
from cutwater.store.records.envelope import PipelineRecords, encode, plain_record

KEPT: Final = 1_000
"""How many reports of each kind `trim` keeps."""


class AttemptStatus(Enum):
    COMPLETED = "completed"
    FAILED = "failed"


class StepReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step's part of an attempt.

    Attributes:
        start_delay_ms: From the attempt's start to the first barrier that the step saw.
        alignment_ms: From there to the barrier that the step emitted.
        sync_ms: How long its files were being pinned, while the step waited.
        async_ms: How long the files were being stored, while the step continued.
        end_to_end_ms: From the attempt's start to the acknowledgement.
        uploaded_bytes: The bytes that were newly stored.
        state_bytes: The full size of its state.
        in_flight_bytes: The size of its in-flight input.
        rows: The rows that it emitted in its generation before its barrier; None if not counted.
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
        generation: The generation that made it.
        status: Whether it became a checkpoint, as far as its driver knew.
        name: The name, if it is a savepoint.
        started_at_ms: When it started.
        duration_ms: From its start to its decision or failure.
        committed_ms: From its start until all sinks had committed; None if they had nothing to
            commit, or if the time is unknown.
        unaligned: Whether a barrier overtook data.
        commit_point: Whether sinks committed at it.
        uploaded_bytes: The bytes that were newly stored for it.
        state_bytes: The size of everything that a restore of it needs.
        in_flight_bytes: The part of that size that was in flight.
        failure: Why it failed; empty otherwise.
        steps: The steps that had acknowledged it.
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
    """How a generation was started, phase by phase.

    Attributes:
        generation: The generation that it started.
        checkpoint_id: The checkpoint that it restored; None for an empty start.
        started_at_ms: When the recovery started.
        reason: What made it necessary; empty for the start of a process.
        choose_ms: Claiming the pipeline, finding its last cut and checking it byte by byte.
        commit_replay_ms: Repeating decided commits.
        fetch_ms: Restoring state and in-flight data.
        start_ms: Calling the steps' functions and starting their queries.
        first_batch_ms: From then to the first finished batch; None if there was none.
        repeated_commits: How many decided commits were repeated.
        state_bytes: The size of the cut.
        linked_bytes: The bytes of the cut and its bundles that were found on this machine.
        fetched_bytes: The bytes that came from the store.
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
        """From the start to the first batch, or to the last phase that was reached."""
        phases = (self.choose_ms, self.commit_replay_ms, self.fetch_ms, self.start_ms)
        return sum(phases) + (self.first_batch_ms or 0)


REPORT: Final = plain_record("report", AttemptReport)
RECOVERY: Final = plain_record("recovery", RecoveryReport)


class Reports(PipelineRecords):
    """The reports of one pipeline. A report that cannot be read counts as lost.

    Every method that reads raises `Unavailable` if the store does not answer. `recoveries` also
    raises `Corrupt` for an unknown object among the reports.
    """

    def write(self, report: AttemptReport | RecoveryReport) -> None:
        """Write a report, replacing an earlier one of the same attempt or recovery."""
        if isinstance(report, AttemptReport):
            path = self._paths.report(report.checkpoint_id)
            self._backend.put(path, encode(REPORT, path, report))
        else:
            path = self._paths.recovery(report.generation)
            self._backend.put(path, encode(RECOVERY, path, report))

    def attempt(self, checkpoint_id: CheckpointId) -> AttemptReport | None:
        """Read the report of an attempt; None if it is missing or unreadable."""
        return self._read_if_usable(REPORT, self._paths.report(checkpoint_id))

    def recovery(self, generation: Generation) -> RecoveryReport | None:
        """Read the report of the recovery that started a generation; None if there is none."""
        return self._read_if_usable(RECOVERY, self._paths.recovery(generation))

    def recoveries(self) -> tuple[RecoveryReport, ...]:
        """Read all readable reports of recoveries, oldest first."""
        paths = self._backend.list(self._paths.recoveries)
        found = (self.recovery(self._paths.generation_of_recovery(path)) for path in paths)
        return tuple(report for report in found if report is not None)

    def trim(self, keep: int = KEPT) -> int:
        """Delete all but the newest reports of each kind; return how many were deleted."""
        old = [
            path
            for prefix in (self._paths.reports, self._paths.recoveries)
            for path in self._backend.list(prefix)[:-keep]
        ]
        for path in old:
            self._backend.delete(path)
        return len(old)

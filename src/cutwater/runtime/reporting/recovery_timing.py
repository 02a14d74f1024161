"""How long the phases of a recovery took: choose, commit replay, fetch, start, first batch.

Recovery, the build and the start of a generation write into one stopwatch, one after the other.
The times are only reported; nothing else depends on them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.ids import Generation
from cutwater.protocol.recovery import Restore
from cutwater.runtime.step import RunningStep
from cutwater.store.records.reports import RecoveryReport


class Phase(Enum):
    CHOOSE = auto()
    """Claim the pipeline and find its last cut."""
    COMMIT_REPLAY = auto()
    """Repeat decided commits."""
    FETCH = auto()
    """Fetch state and in-flight data, and verify every byte."""
    START = auto()
    """Call the steps' functions and start their queries."""
    FIRST_BATCH = auto()
    """From the start to the first finished batch."""


class Phases:
    """The stopwatch of one recovery. A nested phase does not count for the outer phase."""

    def __init__(self, reason: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        """Start; the reason is empty for the start of a process."""
        self._reason = reason
        self._clock = clock
        self._started_at_ms = clock.now_ms()
        self._spent_ms: dict[Phase, int] = {}
        self._open: list[Phase] = []
        self._since_ms = 0
        self.repeated_commits = 0
        self.linked_bytes = 0
        self.fetched_bytes = 0

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count the time inside the block for this phase. For one thread."""
        self._turn()
        self._open.append(phase)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        """Add the time since the last call to the innermost phase."""
        at_ms = self._clock.now_ms()
        if self._open:
            phase = self._open[-1]
            self._spent_ms[phase] = self._spent_ms.get(phase, 0) + at_ms - self._since_ms
        self._since_ms = at_ms

    def first_batch(self) -> None:
        """Record that the first batch is finished, counted from the end of the last phase."""
        self._spent_ms[Phase.FIRST_BATCH] = self._clock.now_ms() - self._since_ms

    def report(self, restore: Restore) -> RecoveryReport:
        cut = restore.cut
        return RecoveryReport(
            generation=Generation(restore.generation),
            checkpoint_id=None if cut is None else cut.checkpoint_id,
            started_at_ms=self._started_at_ms,
            reason=self._reason,
            choose_ms=self._ms(Phase.CHOOSE),
            commit_replay_ms=self._ms(Phase.COMMIT_REPLAY),
            fetch_ms=self._ms(Phase.FETCH),
            start_ms=self._ms(Phase.START),
            first_batch_ms=self._spent_ms.get(Phase.FIRST_BATCH),
            repeated_commits=self.repeated_commits,
            state_bytes=0 if cut is None else cut.size_bytes,
            linked_bytes=self.linked_bytes,
            fetched_bytes=self.fetched_bytes,
        )

    def _ms(self, phase: Phase) -> int:
        return self._spent_ms.get(phase, 0)


class FirstBatch:
    """Waits for the first batch of a generation, and then reports its recovery."""

    def __init__(
        self,
        phases: Phases,
        restore: Restore,
        steps: Iterable[RunningStep],
        tell: Callable[[RecoveryReport], None],
    ) -> None:
        """Record the last batch of every step before any step runs."""
        self._phases = phases
        self._restore = restore
        self._tell = tell
        self._before = [(step, step.machine.committed) for step in steps]

    @property
    def report(self) -> RecoveryReport:
        return self._phases.report(self._restore)

    @property
    def waits(self) -> bool:
        return bool(self._before)

    def look(self) -> None:
        """Check whether a batch is finished; cheap, and free after the first batch."""
        if any(step.machine.committed > before for step, before in self._before):
            self._phases.first_batch()
            self._end()

    def close(self) -> None:
        """Report now if no batch was finished: the generation has ended."""
        if self._before:
            self._end()

    def _end(self) -> None:
        self._before.clear()
        self._tell(self.report)

"""How often sinks commit: `commit_every` in the pure layer (PROTOCOL.md section 9, ADR 0020).

A cut before its turn is a recovery point and carries what was staged. Time is that of the attempt's
start, which an event brought. What ends something is never before its turn: a savepoint, a full
checkpoint, a drain, the last checkpoint of a run, and a cut in which every source has finished.
After a restart nobody knows how long rows have waited, so it is their turn. Upholds I10.
"""

from collections.abc import Iterable

from cutwater.protocol.checkpoint.attempt import Attempt
from cutwater.protocol.cut import Cut, StepSnapshot


class CommitPace:
    """When the sinks of one generation may commit."""

    def __init__(self, every_ms: int) -> None:
        """Begin a generation: it is the sinks' turn."""
        self._every_ms = every_ms
        self._committed_at_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Say whether the sinks have waited long enough at this time."""
        last_ms = self._committed_at_ms
        return last_ms is None or now_ms - last_ms >= self._every_ms

    def commits(self, attempt: Attempt, sources: Iterable[StepSnapshot]) -> bool:
        """Say whether sinks commit at the cut of this attempt, as far as time is concerned.

        Args:
            attempt: The attempt.
            sources: The sources' snapshots in it.
        """
        request = attempt.request
        if request.flags or request.is_last or all(one.finished for one in sources):
            return True
        return self.is_due(attempt.started_at_ms)

    def decided(self, cut: Cut) -> None:
        """Note a decision: one that gives sinks rows is the last commit from now on."""
        if cut.commit_point and any(cut.commit.values()):
            self._committed_at_ms = cut.started_at_ms

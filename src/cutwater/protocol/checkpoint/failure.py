"""Why attempts fail, and what follows from repeated failures (PROTOCOL.md section 7).

One closed enum of reasons; each says whether it counts against `tolerable_failed`. Exceeding the
limit restarts the pipeline from its last decided checkpoint. Without a limit a failed attempt is
only an alarm.
"""

from dataclasses import dataclass
from enum import Enum


class FailureReason(Enum):
    """Why an attempt ended without a checkpoint.

    Each member holds its human-readable sentence and whether the failure is counted.
    """

    EXPIRED = ("the deadline passed before every step had acknowledged", True)
    STEP_FAILED = ("a step failed", True)
    SNAPSHOT_FAILED = ("a step could not store its snapshot", True)
    INFLIGHT_TOO_LARGE = ("a step would have recorded more than max_inflight_bytes", True)
    SINK_CANNOT_OVERTAKE = ("an overtaking barrier reached a step that never overtakes", True)
    INCONSISTENT_CUT = ("the snapshots do not form a consistent cut", True)
    STORE_FAILED = ("the store did not accept the records of the checkpoint", True)
    ID_TAKEN = ("the attempt's number had already been used", False)
    SUBSUMED = ("a later attempt was decided first", False)
    CANCELLED = ("it was aborted on request", False)
    GAVE_WAY = ("it gave way to the last checkpoint of a stop", False)
    STOPPED = ("the pipeline stopped", False)

    def __init__(self, sentence: str, counted: bool) -> None:
        self.sentence = sentence
        self.counted = counted


@dataclass(slots=True)
class FailureStreak:
    """How many attempts in a row have failed, and the pause that follows."""

    tolerable: int | None
    retry_ms: int
    retry_max_ms: int
    counted: int = 0

    def failed(self, reason: FailureReason) -> bool:
        """Note a failure; return whether the pipeline must restart because of it."""
        if not reason.counted:
            return False
        self.counted += 1
        return self.tolerable is not None and self.counted > self.tolerable

    def completed(self) -> None:
        self.counted = 0

    @property
    def pause_ms(self) -> int:
        """How long to wait before the next automatic attempt; 0 without failures."""
        return backoff_ms(self.counted, self.retry_ms, self.retry_max_ms)


def backoff_ms(failures: int, first_ms: int, longest_ms: int) -> int:
    """Return the pause after that many failures in a row: doubled each time, up to a maximum."""
    if failures == 0:
        return 0
    # After 40 doublings every pause is the maximum; the bound keeps the shift small.
    return min(longest_ms, first_ms << min(failures - 1, 40))

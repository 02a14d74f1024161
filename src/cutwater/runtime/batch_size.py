"""How much the next batch of a step reads: more while there is a backlog, within a time.

Every batch has a fixed cost: planning, two log files, a commit of the state. A step that lags pays
it less often with larger batches. A barrier passes between two batches, so a batch must not take
long: the target is `checkpoint.target_batch`. A step that has caught up returns to small batches at
once, so that rows arrive early. What a batch reads is part of no checkpoint, so a restart starts
small again (docs/adr/0045).

`grow` is for sources with a limit that counts files or rows, `BatchBudget` for channels.
"""

from dataclasses import dataclass
from typing import Final

MULTIPLE_MAX: Final = 64
"""The most by which a limit of a source is multiplied."""

_FIRST_BYTES: Final = 32 * 1024 * 1024
"""What a batch reads from a channel before the step's speed is known."""

_GROWTH: Final = 2
"""The most by which a batch is larger than the one before it: a guess of its time may be wrong."""


def grow(multiple: int, *, took_ms: int, is_full: bool, target_ms: int) -> int:
    """Return by what the limits of a step's sources are multiplied for the next batch.

    Args:
        multiple: What the limits of the last batch were multiplied by.
        took_ms: How long it took.
        is_full: Whether it reached a limit, so that more is left to read.
        target_ms: How long a batch may take; 0 for never more than the limits.
    """
    if not is_full or target_ms == 0:
        return 1
    fitting = multiple * target_ms // max(took_ms, 1)
    return max(1, min(fitting, _GROWTH * multiple, MULTIPLE_MAX))


@dataclass(slots=True)
class BatchBudget:
    """How many bytes a step reads from each of its channels in one batch.

    Attributes:
        target_ms: How long a batch may take; 0 for no limit.
    """

    target_ms: int = 0
    _size_bytes: int = _FIRST_BYTES

    @property
    def size_bytes(self) -> int | None:
        return self._size_bytes if self.target_ms else None

    def note(self, read_bytes: int, took_ms: int) -> None:
        """Record a batch: the bytes of the channel it read most of, and how long it took."""
        if self.target_ms == 0 or read_bytes == 0:
            return
        fitting = read_bytes * self.target_ms // max(took_ms, 1)
        if took_ms <= self.target_ms:
            # A small batch is mostly fixed cost, and says little about a large one.
            self._size_bytes = max(self._size_bytes, min(fitting, _GROWTH * read_bytes))
        else:
            self._size_bytes = max(1, min(fitting, self._size_bytes))

    def within(self, size_bytes: int | None) -> int | None:
        """Return the smaller of the budget and the step's own limit."""
        limits = [limit for limit in (self.size_bytes, size_bytes) if limit is not None]
        return min(limits, default=None)

"""The two clocks: one that machines compare with each other, one that never goes backwards.

Leases, requests and times in records use `wall_ms`. Deadlines and durations use `now_ms`.
"""

import time
from typing import Final

_OFFSET_S: Final = time.time() - time.monotonic()


def wall_ms() -> int:
    """Return the wall-clock time, which other machines compare with theirs."""
    return int(time.time() * 1000)


def now_ms() -> int:
    """Return the time on a clock that starts at the wall-clock time and never goes backwards."""
    return int((time.monotonic() + _OFFSET_S) * 1000)

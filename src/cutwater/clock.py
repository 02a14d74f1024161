"""The clock port: one clock that machines compare with each other, one that never goes backwards.

Leases, requests and times in records use `wall_ms`. Deadlines and durations use `now_ms`. The
driver gets its clock as a value (`runtime.context`), so that the simulator can give it another one;
commands that do not run a pipeline use the functions of this module.
"""

import time
from typing import Final, Protocol

_OFFSET_S: Final = time.time() - time.monotonic()


class Clock(Protocol):
    """Tells the time."""

    def wall_ms(self) -> int:
        """Return the wall-clock time, which other machines compare with theirs."""
        ...

    def now_ms(self) -> int:
        """Return the time on a clock that never goes backwards."""
        ...


def wall_ms() -> int:
    """Return the wall-clock time, which other machines compare with theirs."""
    return int(time.time() * 1000)


def now_ms() -> int:
    """Return the time on a clock that starts at the wall-clock time and never goes backwards."""
    return int((time.monotonic() + _OFFSET_S) * 1000)


class SystemClock:
    """The clock of this machine."""

    def wall_ms(self) -> int:
        return wall_ms()

    def now_ms(self) -> int:
        return now_ms()


SYSTEM_CLOCK: Final[Clock] = SystemClock()

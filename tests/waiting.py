"""Waiting for a condition, with a deadline that is far away: it is there to fail, not to time.

What follows another process, or Spark, may take a hundred times as long on a busy machine.
"""

import time
from collections.abc import Callable

DEADLINE_S = 60.0


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    pause_s: float = 0.02,
    deadline_s: float = DEADLINE_S,
) -> None:
    """Wait for a condition; fail by its name."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s:g} s: {what}"
        time.sleep(pause_s)

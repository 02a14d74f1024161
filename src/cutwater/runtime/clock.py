"""The clock of a running pipeline: milliseconds since 1970, never going back.

Barriers carry the attempt's start and manifests are read by people, so the time is the wall's; but
deadlines are computed from it, so a wall clock that is set back must not stop them.
"""

import time
from typing import Final

_OFFSET_S: Final = time.time() - time.monotonic()


def now_ms() -> int:
    """Return the time now."""
    return int((time.monotonic() + _OFFSET_S) * 1000)

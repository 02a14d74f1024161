"""The clock on the wall, which processes and machines compare with each other.

Leases, requests and times in records go by it; whatever is only measured here goes by another one.
"""

import time


def wall_ms() -> int:
    """Return the time on the wall, for others to compare: it goes on while a machine sleeps."""
    return int(time.time() * 1000)

"""How many files this process may have open: what a run needs, and how it gets them.

Shells often start programs with a soft limit of 1,024 and a hard limit far above. Every channel,
connection and table counts, so a run raises its soft limit by itself; the hard one is for whoever
looks after the machine, and `cutwater doctor` says when it is too low.
"""

import resource
from contextlib import suppress
from typing import Final

FILES_MIN: Final = 1_024
"""With fewer, a small pipeline runs out of them."""
FILES_COMFORTABLE: Final = 4_096
_FILES_WANTED: Final = 65_536


def files_possible() -> int:
    """Return how many files a run may have open once it has raised its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return raised(soft, hard)


def raise_open_files() -> None:
    """Raise the soft limit of this process, and of those it starts, as far as is useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = raised(soft, hard)
    if wanted != soft:
        # Some systems have a lower limit of their own; then the old one stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def raised(soft: int, hard: int) -> int:
    """Return what the soft limit is to be: as high as wanted and allowed, never lower than now."""
    if soft == resource.RLIM_INFINITY:
        return soft
    allowed = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    return max(soft, allowed)

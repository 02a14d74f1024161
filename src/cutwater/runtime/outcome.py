"""How a generation of a running pipeline ends.

The event loop returns the outcome; the supervisor decides what follows.
"""

import errno
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cutwater.ids import StepId

_STARVED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN})
_CAUSES_MAX: Final = 20


def is_starved(error: BaseException | None) -> bool:
    """Say whether an error comes from a lack of file descriptors, memory or threads.

    That is a temporary state of the process or the machine, not of the pipeline.
    """
    for _ in range(_CAUSES_MAX):
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in _STARVED:
            return True
        error = error.__cause__ or error.__context__
    return False


class End(Enum):
    FINISHED = auto()
    """Every step has ended by itself and everything is committed."""
    STOPPED = auto()
    """A stop was requested."""
    FAILED = auto()
    """A step failed, or too many attempts failed: restart from the last checkpoint."""
    FENCED = auto()
    """Another generation has claimed the pipeline, or a sink has refused this generation."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a generation, with its cause if there is one."""

    end: End
    step: StepId | None = None
    error: BaseException | None = None
    detail: str = ""

    @property
    def is_starved(self) -> bool:
        """Whether the driver itself failed for lack of a system resource."""
        return self.end is End.FAILED and self.step is None and is_starved(self.error)

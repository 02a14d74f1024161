"""stdout and stderr that may be lost: a run must not end because nobody reads what it says.

The reader of a pipe may go, a disk may be full, a terminal may hang up. What cannot be written is
dropped, here and for whatever else writes to these streams: the live view, logging, a console sink,
the user's own code. What the stream cannot encode is written out instead of raising. Standard
streams that are closed when the process starts are those of the null device.
"""

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT: Final = 1
_STDERR: Final = 2
_ORIGINAL: Final[list[TextIO | None]] = []
"""The streams of Python's own, so that their file descriptors stay open."""
_LOST: Final[dict[int, OSError]] = {}
"""The first error of each file descriptor."""


class LossyOutput(io.RawIOBase):
    """A file descriptor that takes everything; what cannot be written is dropped."""

    def __init__(self, number: int, name: str) -> None:
        """Write to this file descriptor, which stays open."""
        self._number = number
        self.name = name

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._number

    def isatty(self) -> bool:
        """Say whether it is a terminal."""
        return os.isatty(self._number)

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, or drop; return how many bytes are done with."""
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                # Some other program has made it so; wait as for any stream.
                select.select([], [self._number], [])
            except OSError as error:
                # Not for good: a full disk may have room again.
                _LOST.setdefault(self._number, error)
                return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let stdout and stderr of this process take everything from now on."""
    _ORIGINAL.extend((sys.stdout, sys.stderr))
    sys.stdout = _lossy(sys.stdout, _STDOUT, "<stdout>")
    sys.stderr = _lossy(sys.stderr, _STDERR, "<stderr>")
    # Whoever compares them finds that nothing else has taken their place, such as a live view.
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def lost_output() -> OSError | None:
    """Return why output is incomplete; None if it is not, or its reader wanted no more of it."""
    error = _LOST.get(_STDOUT)
    return None if error is None or error.errno in {errno.EPIPE, errno.EIO} else error


def _lossy(stream: TextIO | None, number: int, name: str) -> io.TextIOWrapper:
    if stream is None:
        # Closed: the next file that is opened must not get this number, and what is said.
        null = os.open(os.devnull, os.O_WRONLY)
        if null != number:
            os.dup2(null, number)
            os.close(null)
    else:
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(LossyOutput(number, name)),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=number == _STDERR or os.isatty(number),
        write_through=getattr(stream, "write_through", False),
    )

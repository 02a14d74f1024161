"""The command's own process: its open files, the signals that end it, its stdout and stderr.

Open files: shells often start programs with a soft limit of 1,024 and a much higher hard limit.
Every channel, connection and table counts, so a run raises its soft limit. The hard limit is up to
the administrator of the machine; `cutwater doctor` reports one that is too low.

Signals: SIGTERM, and SIGHUP unless the command was started to ignore it, raise `Ended` in the main
thread, as Ctrl-C does, and the command cleans up. Their default action would leave a JVM, a token
file or a lease behind, and process 1 of a container ignores a signal without a handler. A run that
has started handles them itself (`cli.commands.run`), as a request to stop with a last checkpoint.

Output: a run must not end because its output cannot be written. The reader of a pipe may be gone, a
disk full, a terminal closed. Output that cannot be written is dropped, also that of the live view,
logging, a console sink and the user's own code. Characters that the stream cannot encode are
escaped. A standard stream that is closed when the process starts is replaced by the null device.
"""

import errno
import io
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


FILES_MIN: Final = 1_024
"""With fewer, a small pipeline runs out of them."""
FILES_COMFORTABLE: Final = 4_096
_FILES_TARGET: Final = 65_536


def open_files_max() -> int:
    """Return how many files a run may have open once it has raised its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return best_soft_limit(soft, hard)


def raise_open_files() -> None:
    """Raise the soft limit of this process, and of those it starts, as far as is useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = best_soft_limit(soft, hard)
    if wanted != soft:
        # Some systems have a lower limit of their own; then the old one stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def best_soft_limit(soft: int, hard: int) -> int:
    """Return what the soft limit is to be: as high as wanted and allowed, never lower than now."""
    if soft == resource.RLIM_INFINITY:
        return soft
    allowed = _FILES_TARGET if hard == resource.RLIM_INFINITY else min(hard, _FILES_TARGET)
    return max(soft, allowed)


ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_RECEIVED: Final[list[signal.Signals]] = []


class Ended(BaseException):
    """A signal has ended the command; like `KeyboardInterrupt`, it is no error.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        """Name the signal."""
        super().__init__(number)
        self.number = number


def end_on_signals() -> None:
    """Let the signals of `ENDING` raise `Ended` in the main thread; call it there."""
    for number in ending_signals():
        signal.signal(number, _end)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals of `ENDING` that this process does not ignore, as under nohup(1)."""
    return tuple(
        number
        for number in ENDING
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    )


def received_signal() -> str:
    """Return the name of the signal that has come; empty if none has.

    `Ended` can be lost where Python ignores exceptions, as in a finalizer; this is not.
    """
    return _RECEIVED[0].name if _RECEIVED else ""


def _end(number: int, _frame: FrameType | None) -> None:
    """Raise `Ended` once; what cleans up must not be ended by a second signal."""
    if not _RECEIVED:
        _RECEIVED.append(signal.Signals(number))
        raise Ended(_RECEIVED[0])


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


def make_output_lossy() -> None:
    """Let stdout and stderr of this process take everything from now on."""
    _ORIGINAL.extend((sys.stdout, sys.stderr))
    sys.stdout = _lossy_stream(sys.stdout, _STDOUT, "<stdout>")
    sys.stderr = _lossy_stream(sys.stderr, _STDERR, "<stderr>")
    # Whoever compares them finds that nothing else has taken their place, such as a live view.
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def lost_output() -> OSError | None:
    """Return why output is incomplete; None if it is not, or its reader wanted no more of it."""
    error = _LOST.get(_STDOUT)
    return None if error is None or error.errno in {errno.EPIPE, errno.EIO} else error


def _lossy_stream(stream: TextIO | None, number: int, name: str) -> io.TextIOWrapper:
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

"""The command's own process: its open files, the signals that end it, its stdout and stderr.

Signals raise `Ended` in the main thread, as Ctrl-C raises KeyboardInterrupt, so that the command
cleans up. Their default action would leave a JVM, a token file or a lease, and process 1 of a
container ignores a signal without a handler. A run that has started handles signals itself
(`cli.commands.run`), as a request to stop with a last checkpoint.

A run must not end because its output cannot be written: the reader of a pipe may be gone, a disk
full, a terminal closed. Such output is dropped (`LossyOutput`).
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
"""With fewer, a small pipeline runs out of file descriptors."""
FILES_COMFORTABLE: Final = 4_096
_FILES_TARGET: Final = 65_536


def open_files_max() -> int:
    """Return how many files a run may have open after it has raised its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return best_soft_limit(soft, hard)


def raise_open_files() -> None:
    """Raise the soft limit of this process and its children, as far as is useful.

    Shells often start programs with a soft limit of 1,024 and a much higher hard limit, and every
    channel, connection and table counts. Only an administrator can raise the hard limit; `cutwater
    doctor` reports one that is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = best_soft_limit(soft, hard)
    if wanted != soft:
        # Some systems have a lower limit; then the soft limit stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def best_soft_limit(soft: int, hard: int) -> int:
    """Return the new soft limit: as high as useful and allowed, never lower than now."""
    if soft == resource.RLIM_INFINITY:
        return soft
    allowed = _FILES_TARGET if hard == resource.RLIM_INFINITY else min(hard, _FILES_TARGET)
    return max(soft, allowed)


ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_RECEIVED: Final[list[signal.Signals]] = []


class Ended(BaseException):
    """A signal ends the command; like `KeyboardInterrupt`, it is not an error."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number


def end_on_signals() -> None:
    """Make the signals of `ENDING` raise `Ended` in the main thread; call it there."""
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
    """Return the name of the first signal that arrived; empty if none did.

    `Ended` can be lost where Python ignores exceptions, such as in a finalizer; this is not.
    """
    return _RECEIVED[0].name if _RECEIVED else ""


def _end(number: int, _frame: FrameType | None) -> None:
    """Raise `Ended` once: a second signal must not interrupt the cleanup."""
    if not _RECEIVED:
        _RECEIVED.append(signal.Signals(number))
        raise Ended(_RECEIVED[0])


_STDOUT: Final = 1
_STDERR: Final = 2
_ORIGINAL: Final[list[TextIO | None]] = []
"""Python's original streams, kept so that their file descriptors stay open."""
_LOST: Final[dict[int, OSError]] = {}
"""The first error of each file descriptor."""


class LossyOutput(io.RawIOBase):
    """A file descriptor that accepts all output, and drops what cannot be written.

    This covers everything that writes to the stream: the live view, logging, a console sink, the
    user's own code.
    """

    def __init__(self, number: int, name: str) -> None:
        """Write to this file descriptor, which stays open."""
        self._number = number
        self.name = name

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write or drop; return how many bytes were handled."""
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                # Another program has made it non-blocking; wait as for any stream.
                select.select([], [self._number], [])
            except OSError as error:
                # Later output is tried again: a full disk may have space again.
                _LOST.setdefault(self._number, error)
                return memoryview(data).nbytes


def make_output_lossy() -> None:
    """Replace stdout and stderr: drop output that cannot be written, escape unencodable text."""
    _ORIGINAL.extend((sys.stdout, sys.stderr))
    sys.stdout = _lossy_stream(sys.stdout, _STDOUT, "<stdout>")
    sys.stderr = _lossy_stream(sys.stderr, _STDERR, "<stderr>")
    # Code that compares them must find that nothing, such as a live view, redirects stdout.
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def lost_output() -> OSError | None:
    """Return why output is incomplete; None if it is complete, or its reader closed it."""
    error = _LOST.get(_STDOUT)
    return None if error is None or error.errno in {errno.EPIPE, errno.EIO} else error


def _lossy_stream(stream: TextIO | None, number: int, name: str) -> io.TextIOWrapper:
    if stream is None:
        # Closed at start: the next opened file must not get this number, and the output.
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

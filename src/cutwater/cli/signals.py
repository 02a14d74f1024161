"""Signals that end a command: SIGTERM, and SIGHUP unless the command was started to ignore it.

Their default action would leave a JVM, a token's file or a lease behind; and process 1 of a
container ignores a signal that it has no handler for. So they raise an exception in the main
thread, as Ctrl-C does, and the command cleans up. A run that has started takes them itself
(`cli.run`): as a wish to stop with a last checkpoint.
"""

import signal
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_HEARD: Final[list[signal.Signals]] = []


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
    for number in taken():
        signal.signal(number, _end)


def taken() -> tuple[signal.Signals, ...]:
    """Return the signals of `ENDING` that this process does not ignore, as under nohup(1)."""
    return tuple(
        one
        for one in ENDING
        if one is signal.SIGTERM or signal.getsignal(one) is not signal.SIG_IGN
    )


def heard() -> str:
    """Return the name of the signal that has come; empty if none has.

    `Ended` can be lost where Python ignores exceptions, as in a finalizer; this is not.
    """
    return _HEARD[0].name if _HEARD else ""


def _end(number: int, _frame: FrameType | None) -> None:
    """Raise `Ended` once; what cleans up must not be ended by a second signal."""
    if not _HEARD:
        _HEARD.append(signal.Signals(number))
        raise Ended(_HEARD[0])

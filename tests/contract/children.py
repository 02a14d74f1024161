"""Child processes for the tests of the local store: forked, raced, killed.

A child never comes back into pytest: it ends by `os._exit` or by a signal.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from cutwater.store.backends import files, local

TRACED = {files.__file__, local.__file__}


def fork(action: Callable[[], int]) -> int:
    """Run an action in a child whose exit code is what it returns; give the child's id."""
    child = os.fork()
    if child:
        return child
    # Objects of native libraries must not be collected here: their threads were not forked.
    gc.disable()
    sys.settrace(None)
    code = 99
    try:
        code = action()
    except BaseException:  # noqa: BLE001 - the edge of a process
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(child: int) -> int:
    """Wait for a child; a negative number is the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL


def killed_at_line(number: int, action: Callable[[], object]) -> bool:
    """Run an action in a child that kills itself before the n-th line of the local store's code.

    Returns:
        Whether the child was killed; if not, the action has fewer lines and was finished.
    """

    def run() -> int:
        left = number

        def trace(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401 - as sys asks
            nonlocal left
            if frame.f_code.co_filename not in TRACED:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        action()
        sys.settrace(None)
        return 0

    code = exit_code(fork(run))
    assert code in {0, -signal.SIGKILL}
    return code != 0

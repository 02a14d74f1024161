"""A process without a free file descriptor, for real: every open and every listing fails.

Permissions would not do: the superuser may list everything.
"""

import errno
import functools
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_LIMIT = 256
_FAILING: list[str] = []


def fail_next_listing(reason: str = "a listing that fails once") -> None:
    """Let the next listing of a directory fail in the operating system's name, and no other.

    A server that runs short of descriptors has some again a moment later.
    """
    _install_hook()
    _FAILING.append(reason)


@functools.cache
def _install_hook() -> None:
    """Be called before every listing; there is no way to take such a hook out again."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.scandir" and _FAILING:
            raise OSError(errno.EMFILE, _FAILING.pop(), str(arguments[0]))

    sys.addaudithook(hook)


class Descriptors:
    """Takes all file descriptors of this process that are left, and gives them back."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._limits: tuple[int, int] | None = None

    def take(self) -> None:
        """Let every open fail from now on."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limits = (soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_LIMIT, soft), hard))
        try:
            while True:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass

    def give_back(self) -> None:
        """Let files be opened again; may be repeated."""
        # Also where none could be taken: a process may hold more than the lowered limit allows.
        if self._limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
            self._limits = None
        while self._held:
            os.close(self._held.pop())


@contextmanager
def descriptors() -> Iterator[Descriptors]:
    """Give the means to use up all descriptors; they are free again at the end."""
    with ExitStack() as cleanup:
        made = Descriptors()
        cleanup.callback(made.give_back)
        yield made


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}

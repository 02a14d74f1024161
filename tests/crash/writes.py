"""The durable writes of a store by name: what a process can be asked to die before or after.

The names come from the calls themselves, so that a new kind of object has a name of its own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from cutwater.store.local import LocalBackend

WRITES: Final = ("create", "put", "put_file", "delete")
"""The methods of a backend that change a store."""


def area_of(path: str) -> str:
    """Return the kind of object at a path of a store."""
    parts = path.split("/")
    return parts[2] if parts[0] == "pipelines" else parts[0]


def wrap(
    owner: type, method: str, name: Callable[..., str], reached: Callable[[str, str], None]
) -> None:
    """Make a method tell which write it makes, before and after."""
    original = getattr(owner, method)

    @wraps(original)
    def written(self: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        write = name(self, *given)
        reached("before", write)
        result = original(self, *given, **named)
        reached("after", write)
        return result

    setattr(owner, method, written)


def name_store_writes(reached: Callable[[str, str], None], name: str = "{area}") -> None:
    """Let every durable write of a store be told, by its kind of object and perhaps its call."""

    def named(method: str) -> Callable[..., str]:
        return lambda _, path, *__: name.format(area=area_of(path), method=method)

    for method in WRITES:
        wrap(LocalBackend, method, named(method), reached)

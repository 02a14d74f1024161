"""The durable writes of a store and a sink by name: what a process can be asked to die at.

The names come from the code: from the calls themselves, so that a new kind of object has a name of
its own, and from the ports, whose methods are writes unless they are known to only read. So a new
method counts as a write until it is listed as one that only reads.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from cutwater.sinks.base import OpenSink
from cutwater.store.backends.backend import Backend
from cutwater.store.backends.local import LocalBackend

READS: Final = frozenset(
    {"at_once", "url", "read", "read_to_file", "exists", "size", "list", "problem", "look_back"}
)
"""What changes nothing, of a backend and of a sink."""


def writes_of(port: type) -> tuple[str, ...]:
    """Return the methods of a port that change what outlives a process."""
    public = (name for name in vars(port) if not name.startswith("_"))
    return tuple(name for name in public if name not in READS)


WRITES: Final = writes_of(Backend)
"""The methods of a backend that change a store."""

SINK_WRITES: Final = writes_of(OpenSink)
"""The methods of a sink that change its target."""


def area_of(path: str) -> str:
    """Return the kind of object at a path of a store."""
    parts = path.split("/")
    return parts[2] if parts[0] == "pipelines" else parts[0]


def kind_of(path: str, *given: object) -> str:
    """Return the same, with what an entry of the decision log is."""
    area = area_of(path)
    entries = ("claim", "decision") if area == "log" and given else ()
    found = [entry for entry in entries if f'"entry":"{entry}"' in str(given[0])]
    return " ".join([area, *found])


def wrap(
    owner: type, method: str, name: Callable[..., str], reached: Callable[[str, str], None]
) -> None:
    """Make a method report which write it makes, before and after."""
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
    """Report every durable write of a store, by its kind of object and perhaps its call."""

    def named(method: str) -> Callable[..., str]:
        return lambda _, path, *given: name.format(
            area=area_of(path), kind=kind_of(path, *given), method=method
        )

    for method in WRITES:
        wrap(LocalBackend, method, named(method), reached)

"""Named mutations of the protocol, to prove that the simulator detects them.

Each breaks one rule on purpose: in the protocol, the driver, the store, or in a simulated engine or
table where the rule concerns what real ones do. A test runs the simulator with each and expects a
verdict within 500 seeds. A mutation that is not detected means that the simulator is too weak.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final
from unittest import mock

Patch = tuple[object, str, Any]


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A mutation: its name, the rule it breaks, and what it does instead.

    Attributes:
        shape: The only pipeline to run it with, if others detect it too rarely.
        mode: The only checkpoint mode to run it with, likewise.
        faults: The only faults to run it with, likewise; all of them, by lot, if there are none.
    """

    name: str
    rule: str
    does: str
    patches: Callable[[], list[Patch]]
    shape: str | None = None
    mode: str | None = None
    faults: tuple[str, ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, replacement in self.patches():
                stack.enter_context(mock.patch.object(owner, attribute, replacement))
            yield


SABOTAGES: Final[dict[str, Sabotage]] = {}


def sabotage(
    name: str,
    rule: str,
    *,
    shape: str | None = None,
    mode: str | None = None,
    faults: tuple[str, ...] = (),
) -> Callable[[Callable[[], list[Patch]]], Sabotage]:
    """Register a mutation; its docstring is printed as what it does."""

    def register(patches: Callable[[], list[Patch]]) -> Sabotage:
        does = " ".join((patches.__doc__ or "").split())
        SABOTAGES[name] = Sabotage(name, rule, does, patches, shape, mode, faults)
        return SABOTAGES[name]

    return register


def load() -> dict[str, Sabotage]:
    for part in ("cut", "commit", "visibility", "store", "driver"):
        import_module(f"cutwater.testing.simulation.sabotage.{part}")
    return dict(sorted(SABOTAGES.items()))

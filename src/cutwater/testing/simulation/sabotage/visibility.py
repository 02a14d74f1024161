"""Mutations of what sinks show before their checkpoint, and of its rollback (rule F33).

See `sabotage` for what they are for.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401

from dataclasses import replace
from typing import Any

from cutwater.protocol.recovery import TakeBack, next_action
from cutwater.runtime import recovery
from cutwater.testing.simulation.sabotage.registry import Patch, sabotage
from cutwater.testing.simulation.tables import SimulatedTable, TableDown


@sabotage("nothing-is-taken-back", "F33")
def nothing_is_taken_back() -> list[Patch]:
    """Shut predecessors out, and leave what they showed beyond the cut."""

    def take_back(self: SimulatedTable, claim: Any, version: Any) -> Any:
        del version
        return self.restore(claim, str(len(self.versions) - 1))

    return [(SimulatedTable, "take_back", take_back)]


@sabotage("show-after-a-newer-claim", "F33", faults=("pause", "crash"))
def show_after_a_newer_claim() -> list[Patch]:
    """Let a predecessor show its batches although its successor has rolled the table back."""

    def show(self: SimulatedTable, claim: Any, batch: Any, read: Any) -> None:
        del claim
        if self.down:
            raise TableDown
        self._show(batch, read)

    return [(SimulatedTable, "show", show)]


@sabotage("seal-whatever-is-shown", "F33")
def seal_whatever_is_shown() -> list[Patch]:
    """Record the table's newest version for a cut, with the batches behind it."""
    original = SimulatedTable.seal

    def seal(self: SimulatedTable, *given: Any) -> Any:
        original(self, *given)
        return str(len(self.versions) - 1)

    return [(SimulatedTable, "seal", seal)]


@sabotage("carried-output-not-shown-again", "F33")
def carried_output_not_shown_again() -> list[Patch]:
    """Take a table back without showing what the cut carries for it before all that is new."""

    def action(facts: Any) -> Any:
        found = next_action(facts)
        return replace(found, carried=()) if isinstance(found, TakeBack) else found

    return [(recovery, "next_action", action)]

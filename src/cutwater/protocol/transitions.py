"""The two checks of the machines: transition tables and numbered invariants.

A transition table holds the legal transitions of a machine as data. The machine looks up its next
state and gets a `ProtocolViolation` for a transition that is not in the table, before anything has
changed. The state diagrams in docs/reference are drawn from the same tables, so a diagram cannot
differ from the code (PROTOCOL.md section 1).

`invariant` checks a numbered promise of PROTOCOL.md, also under `python -O`. Use `invariant` for
what must hold whatever input arrives; raise `ProtocolViolation` for an event that must not occur in
the current state. `assert` is only for narrowing types.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from cutwater.errors import InvariantBroken, ProtocolViolation

S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)


@dataclass(frozen=True, slots=True)
class TransitionTable(Generic[S, T]):
    """The legal transitions of one kind of machine.

    Attributes:
        name: Name of the machine, for messages and diagrams.
        initial: The state a new machine is in.
        moves: The next state for each (state, trigger).
    """

    name: str
    initial: S
    moves: Mapping[tuple[S, T], S]

    def next(self, state: S, trigger: T) -> S:
        """Return the next state.

        Raises:
            ProtocolViolation: If the table has no such transition.
        """
        following = self.moves.get((state, trigger))
        if following is None:
            message = f"{self.name}: {trigger.name} is not allowed in {state.name}."
            raise ProtocolViolation(message)
        return following

    def allows(self, state: S, trigger: T) -> bool:
        """Return whether the table has this transition."""
        return (state, trigger) in self.moves

    def terminal(self) -> frozenset[S]:
        """Return the states that no transition leaves."""
        leaving = {state for state, _ in self.moves}
        return frozenset(state for state in self.moves.values() if state not in leaving)


def mermaid(table: TransitionTable[S, T]) -> str:
    """Draw the table as a Mermaid state diagram, in the table's own order."""
    lines = ["stateDiagram-v2", f"    [*] --> {table.initial.name}"]
    lines += [
        f"    {state.name} --> {following.name}: {trigger.name}"
        for (state, trigger), following in table.moves.items()
    ]
    lines += [f"    {state.name} --> [*]" for state in sorted(table.terminal(), key=_name)]
    return "\n".join(lines) + "\n"


def _name(state: Enum) -> str:
    return state.name


def invariant(condition: bool, number: str, reason: str) -> None:
    """Raise unless the condition holds.

    Args:
        condition: What must be true.
        number: The invariant in PROTOCOL.md, `I1` to `I12`.
        reason: What contradicts the invariant; part of the error message.

    Raises:
        InvariantBroken: If the condition is false.
    """
    if not condition:
        raise InvariantBroken(number, reason)

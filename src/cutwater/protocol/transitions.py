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
    """The legal transitions of one kind of machine; any other is a `ProtocolViolation`."""

    name: str
    initial: S
    moves: Mapping[tuple[S, T], S]

    def next(self, state: S, trigger: T) -> S:
        following = self.moves.get((state, trigger))
        if following is None:
            message = f"{self.name}: {trigger.name} is not allowed in {state.name}."
            raise ProtocolViolation(message)
        return following

    def allows(self, state: S, trigger: T) -> bool:
        return (state, trigger) in self.moves

    def terminal(self) -> frozenset[S]:
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
    """Raise `InvariantBroken` unless the condition holds; the numbers `I1`… are in PROTOCOL.md."""
    if not condition:
        raise InvariantBroken(number, reason)

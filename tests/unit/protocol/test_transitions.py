"""Transition tables forbid what they do not hold; a broken invariant is raised by its number."""

from enum import Enum, auto
from typing import Any

import pytest

from cutwater.errors import InvariantBroken, ProtocolViolation
from cutwater.protocol.checkpoint.attempt import ATTEMPT, Phase, PhaseTrigger
from cutwater.protocol.checkpoint.events import COORDINATOR, Mode, ModeTrigger
from cutwater.protocol.commit import COMMITTER, CommitterState, CommitterTrigger
from cutwater.protocol.step.aligner_events import ALIGNMENT, AlignmentState, AlignmentTrigger
from cutwater.protocol.transitions import TransitionTable, invariant, mermaid


class Light(Enum):
    RED = auto()
    GREEN = auto()
    BROKEN = auto()


class Switch(Enum):
    GO = auto()
    HALT = auto()
    HIT = auto()


LIGHT = TransitionTable(
    "traffic light",
    Light.RED,
    {
        (Light.RED, Switch.GO): Light.GREEN,
        (Light.GREEN, Switch.HALT): Light.RED,
        (Light.GREEN, Switch.HIT): Light.BROKEN,
    },
)

TABLES: dict[str, tuple[Any, type[Enum], type[Enum]]] = {
    "alignment": (ALIGNMENT, AlignmentState, AlignmentTrigger),
    "attempt": (ATTEMPT, Phase, PhaseTrigger),
    "committer": (COMMITTER, CommitterState, CommitterTrigger),
    "coordinator": (COORDINATOR, Mode, ModeTrigger),
}

FORBIDDEN = [
    pytest.param(table, state, trigger, id=f"{name}-{state.name}-{trigger.name}")
    for name, (table, states, triggers) in TABLES.items()
    for state in states
    for trigger in triggers
    if (state, trigger) not in table.moves
]

LEGAL = [
    pytest.param(table, state, trigger, following, id=f"{name}-{state.name}-{trigger.name}")
    for name, (table, _, _) in TABLES.items()
    for (state, trigger), following in table.moves.items()
]

TERMINAL = [
    (ALIGNMENT, {AlignmentState.OVER}),
    (ATTEMPT, {Phase.COMPLETED, Phase.FAILED}),
    (COMMITTER, set()),
    (COORDINATOR, {Mode.HALTED}),
]

AnyTable = TransitionTable[Enum, Enum]


def test_a_legal_move_leads_to_the_next_state() -> None:
    assert LIGHT.next(Light.RED, Switch.GO) is Light.GREEN
    assert LIGHT.allows(Light.RED, Switch.GO)


def test_a_move_that_is_not_in_the_table_names_state_and_trigger() -> None:
    """Seed 000 M14: errors printed an id instead of the phase."""
    assert not LIGHT.allows(Light.RED, Switch.HALT)

    with pytest.raises(ProtocolViolation, match="traffic light: HALT is not allowed in RED"):
        LIGHT.next(Light.RED, Switch.HALT)


def test_a_state_that_no_move_leaves_is_terminal() -> None:
    assert LIGHT.terminal() == {Light.BROKEN}


def test_a_table_is_drawn_in_its_own_order() -> None:
    assert mermaid(LIGHT) == (
        "stateDiagram-v2\n"
        "    [*] --> RED\n"
        "    RED --> GREEN: GO\n"
        "    GREEN --> RED: HALT\n"
        "    GREEN --> BROKEN: HIT\n"
        "    BROKEN --> [*]\n"
    )


@pytest.mark.parametrize(("table", "state", "trigger"), FORBIDDEN)
def test_whatever_a_machines_table_lacks_is_refused(
    table: AnyTable, state: Enum, trigger: Enum
) -> None:
    with pytest.raises(ProtocolViolation, match=f"{trigger.name} is not allowed in {state.name}"):
        table.next(state, trigger)


@pytest.mark.parametrize(("table", "state", "trigger", "following"), LEGAL)
def test_whatever_a_machines_table_has_is_allowed(
    table: AnyTable, state: Enum, trigger: Enum, following: Enum
) -> None:
    assert table.next(state, trigger) is following


@pytest.mark.parametrize(("table", "terminal"), TERMINAL)
def test_a_machine_ends_in_these_states_and_in_no_others(
    table: AnyTable, terminal: set[Enum]
) -> None:
    """Seed 000 H11: Completed and Failed of the whole machine were sticky."""
    assert table.terminal() == terminal


@pytest.mark.parametrize(
    ("table", "states"), [(table, states) for table, states, _ in TABLES.values()]
)
def test_every_state_of_a_machine_can_be_reached(table: AnyTable, states: type[Enum]) -> None:
    assert {table.initial, *table.moves.values()} == set(states)


def test_a_promise_that_holds_is_silent() -> None:
    invariant(True, "I4", "never read")


def test_a_broken_promise_names_its_number_and_the_contradiction() -> None:
    with pytest.raises(InvariantBroken) as caught:
        invariant(False, "I4", "an event came twice")

    assert (caught.value.invariant, caught.value.reason) == ("I4", "an event came twice")

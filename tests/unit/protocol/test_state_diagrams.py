"""The document of the state machines: drawn from the tables, current, and said in words."""

from pathlib import Path

import pytest
from scripts.state_diagrams import DOCUMENT, MACHINES, Machine, main, render, sentences

from cutwater.protocol import commit, run_state, stopping
from cutwater.protocol.checkpoint import attempt as pending
from cutwater.protocol.checkpoint import events as coordinator_events
from cutwater.protocol.checkpoint.attempt import AckResult
from cutwater.protocol.step import aligner_events as alignment_events
from cutwater.protocol.transitions import TransitionTable, mermaid


def test_the_document_of_the_state_machines_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(), (
        "run python scripts/state_diagrams.py and commit the result"
    )


def test_every_table_of_the_protocol_is_drawn() -> None:
    modules = (alignment_events, pending, commit, coordinator_events, stopping, run_state)
    tables = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, TransitionTable)
    ]

    assert [machine.table for machine in MACHINES] == tables


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.constant)
def test_a_machine_is_drawn_as_its_table_says(machine: Machine) -> None:
    assert f"```mermaid\n{mermaid(machine.table)}```" in render()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.constant)
def test_every_state_says_what_it_means(machine: Machine) -> None:
    """The sentence stands under the member of the enum."""
    assert set(sentences(machine.states)) == {state.name for state in machine.states}


def test_a_sentence_is_the_text_under_its_member() -> None:
    assert sentences(AckResult)["ACCEPTED"] == "The acknowledgement counts."


def test_a_stale_document_is_reported_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "machines.md"
    document.write_text("drawn by hand", encoding="utf-8")

    exit_code = main(["--check"], document)

    assert exit_code == 1
    assert "is stale" in capsys.readouterr().err
    assert document.read_text(encoding="utf-8") == "drawn by hand"


def test_a_document_that_is_written_is_current(tmp_path: Path) -> None:
    document = tmp_path / "reference" / "machines.md"

    written, checked = main([], document), main(["--check"], document)

    assert (written, checked) == (0, 0)

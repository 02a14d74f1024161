"""Draw the protocol's state machines from its transition tables, as one document.

    python scripts/state_diagrams.py            write docs/reference/state-machines.md
    python scripts/state_diagrams.py --check    fail if that file is not what would be written

What a state means is the text under its member in the source; a state without one is drawn all
the same and listed with a dash.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from cutwater.protocol.checkpoint.attempt import ATTEMPT
from cutwater.protocol.checkpoint.events import COORDINATOR
from cutwater.protocol.commit import COMMITTER
from cutwater.protocol.run_state import RUN
from cutwater.protocol.step.aligner_events import ALIGNMENT
from cutwater.protocol.stopping import STOPPING
from cutwater.protocol.transitions import TransitionTable, mermaid

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "reference" / "state-machines.md"

_HEADER: Final = """\
# State machines

Drawn by `scripts/state_diagrams.py` from the transition tables in `src/cutwater/protocol`: change
a table, run the script, and commit both. A move that is not drawn here raises `ProtocolViolation`
and leaves the machine as it was.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: its table, and the name of the table in the source."""

    table: TransitionTable[Any, Any]
    constant: str

    @property
    def states(self) -> type[Enum]:
        """The enum of its states."""
        return type(self.table.initial)


MACHINES: Final = (
    Machine(ALIGNMENT, "ALIGNMENT"),
    Machine(ATTEMPT, "ATTEMPT"),
    Machine(COMMITTER, "COMMITTER"),
    Machine(COORDINATOR, "COORDINATOR"),
    Machine(STOPPING, "STOPPING"),
    Machine(RUN, "RUN"),
)


def sentences(states: type[Enum]) -> Mapping[str, str]:
    """Return the text under each member of an enum, for the members that have one."""
    (definition,) = ast.parse(dedent(inspect.getsource(states))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        match member, text:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(sentence))),
            ):
                found[name] = " ".join(sentence.split())
    return found


def render() -> str:
    """Return the document as it should be."""
    return "\n".join((_HEADER, *(_section(machine) for machine in MACHINES)))


def _section(machine: Machine) -> str:
    name, module = machine.table.name, inspect.getmodule(machine.states)
    assert module is not None
    said = sentences(machine.states)
    rows = "\n".join(f"| {state.name} | {said.get(state.name, '—')} |" for state in machine.states)
    return (
        f"## {name[0].upper()}{name[1:]}\n\n"
        f"`{machine.constant}` in `{module.__name__}`.\n\n"
        f"```mermaid\n{mermaid(machine.table)}```\n\n"
        f"| state | meaning |\n|---|---|\n{rows}\n"
    )


def main(arguments: Sequence[str], document: Path = DOCUMENT) -> int:
    """Write the document, or compare it; return the exit code."""
    parser = argparse.ArgumentParser(description="Draw the protocol's state machines.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    current = document.read_text(encoding="utf-8") if document.exists() else ""
    wanted = render()
    if not parser.parse_args(arguments).check:
        document.parent.mkdir(parents=True, exist_ok=True)
        document.write_text(wanted, encoding="utf-8")
        return 0
    if current == wanted:
        return 0
    sys.stderr.write(f"{document} is stale: run python scripts/state_diagrams.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

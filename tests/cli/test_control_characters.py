"""Escape sequences in data: written out wherever people look, whole for programs."""

import io
import json
import logging
from typing import Any

import pytest
from rich.console import Console

from cutwater.cli.commands.state import _show_rows
from cutwater.cli.live import LiveScreen, view
from cutwater.cli.logs import JsonLines, LogFormat, log_as
from cutwater.cli.output import Table, complain, say, say_json
from cutwater.cli.render import show
from cutwater.printable import printable, printable_json, printable_line
from cutwater.runtime.reporting.status import RunStatus, StepStatus

EVIL = "a\x1b]0;owned\x07b\x9b31mc\x7f\r\x00"
SHOWN = "a\\x1b]0;owned\\x07b\\x9b31mc\\x7f\\r\\x00"
Output = pytest.CaptureFixture[str]


def unsafe(text: str) -> set[str]:
    """Which control characters are in a text, but for the ends of lines."""
    return {one for one in text if (one < " " or "\x7f" <= one <= "\x9f") and one != "\n"}


def test_control_characters_are_written_out() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("tab\tline\n") == "tab\tline\n"
    assert printable_line("tab\tline\n") == "tab\\tline\\n"
    assert printable("größe 🜁 \udc80 \u202e") == "größe 🜁 \\udc80 \\u202e"


def test_json_means_the_same_and_has_no_control_characters() -> None:
    text = printable_json(json.dumps([EVIL], ensure_ascii=False))

    assert unsafe(text) == set()
    assert json.loads(text) == [EVIL]


def test_lines_of_a_command_are_safe(capsys: Output) -> None:
    say(EVIL)
    complain(EVIL)
    say_json({"key": EVIL})

    said = capsys.readouterr()
    assert said.err == f"{SHOWN}\n"
    first, second = said.out.splitlines()
    assert first == SHOWN
    assert unsafe(second) == set()
    assert json.loads(second) == {"key": EVIL}


def test_tables_are_safe_and_keep_to_their_lines(capsys: Output) -> None:
    table = Table("key", f"of {EVIL}", box=None)
    table.add_row(f"{EVIL}\n", EVIL)

    show(table, EVIL)

    said = capsys.readouterr().out
    assert unsafe(said) == set()
    assert said.count(SHOWN) == 4
    assert len(said.splitlines()) == 3


def test_rows_of_state_are_safe(capsys: Output) -> None:
    _show_rows([{"key": {f"field {EVIL}": EVIL}, "value": {"sum": [EVIL]}}])

    said = capsys.readouterr().out
    assert unsafe(said) == set()
    assert SHOWN in said


def test_the_live_view_is_safe() -> None:
    step = StepStatus(EVIL, "query", 1, 1, 1.0, False, None)
    drawn = Console(file=io.StringIO(), width=200, force_terminal=False)
    status = RunStatus("orders", 1, "RUNNING", (step,), detail=EVIL)

    drawn.print(view(status))
    screen = LiveScreen(drawn)
    screen.write_line(EVIL)

    assert isinstance(drawn.file, io.StringIO)
    said = drawn.file.getvalue()
    assert unsafe(said) == set()
    assert said.count(SHOWN) == 3


def test_log_lines_are_safe(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a command: no handler but Python's own, whose form is put back afterwards.
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_as(LogFormat.TEXT)

    logging.getLogger("cutwater.spark").warning("the key %s", EVIL)

    assert capsys.readouterr().err == f"the key {SHOWN}\n"


def test_log_lines_for_programs_are_safe() -> None:
    record = logging.LogRecord("cutwater", logging.INFO, "f", 1, "%s", (EVIL,), None)

    line = JsonLines().format(record)

    assert unsafe(line) == set()
    found: dict[str, Any] = json.loads(line)
    assert found["message"] == EVIL

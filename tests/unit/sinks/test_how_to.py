"""The how-to about a sink of one's own shows the example that the contract checks, and a test."""

import re
from pathlib import Path

import pytest

from cutwater.testing import SinkContract

ROOT = Path(__file__).parents[3]


def blocks() -> list[str]:
    text = (ROOT / "docs" / "how-to" / "write-a-sink.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_how_to_shows_the_example_as_it_is() -> None:
    assert blocks()[0] == (ROOT / "examples" / "sqlite_sink.py").read_text(encoding="utf-8")


def test_the_test_of_the_how_to_describes_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names: dict[str, type[SinkContract]] = {}
    exec(blocks()[1], names)
    contract = names["TestSqliteSink"]()

    assert contract.shown(tmp_path) == []
    contract.test_the_target_says_what_planning_needs(tmp_path)

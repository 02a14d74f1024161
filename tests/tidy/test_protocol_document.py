"""PROTOCOL.md names tests and sabotages; all of them must exist."""

import re
from pathlib import Path

from cutwater.testing.simulation.sabotage import load

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "PROTOCOL.md").read_text().split("## What came from where", 1)[1]


def test_every_test_that_the_protocol_names_exists() -> None:
    places = ("unit/protocol", "unit/spark", "contract", "spark", "crash")
    paths = (path for place in places for path in (ROOT / "tests" / place).glob("*.py"))
    sources = (path.read_text() for path in paths)
    defined = set(re.findall(r"def (test_\w+)", "\n".join(sources)))

    named = set(re.findall(r"`(test_\w+)`", TABLES))

    assert named - defined == set()
    assert len(named) > 80


def test_every_sabotage_that_the_protocol_names_exists() -> None:
    rules = TABLES.split("### Rules", 1)[1].split("### Rules on Spark", 1)[0]
    cells = (line.split("|")[-2] for line in rules.splitlines() if line.startswith("| F"))

    named = {name.strip() for cell in cells for name in cell.split(",") if name.strip()}

    assert named - set(load()) == set()
    assert len(named) > 25


def test_no_row_of_the_tables_is_without_a_guard() -> None:
    rows = [line for line in TABLES.splitlines() if re.match(r"\| (\d{3} |F\d)", line)]

    assert [row for row in rows if "`test_" not in row] == []

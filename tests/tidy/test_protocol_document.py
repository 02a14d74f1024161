"""PROTOCOL.md names tests and sabotages; all of them must exist."""

import importlib
import importlib.util
import re
from pathlib import Path

from cutwater.testing.simulation.sabotage.registry import load

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "PROTOCOL.md").read_text().split("## What came from where", 1)[1]


def test_every_test_that_the_protocol_names_exists() -> None:
    kinds = ("unit", "contract", "spark", "crash")
    paths = (path for kind in kinds for path in (ROOT / "tests" / kind).rglob("*.py"))
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


def seed_features() -> list[tuple[str, str, str]]:
    """The rows of the table of the seeds' features: what, where, and by which tests."""
    table = TABLES.split("### Seed features", 1)[1].split("###", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [(what, where, tests) for what, where, tests in rows[1:]]


def test_every_feature_of_the_seeds_has_a_guard() -> None:
    features = seed_features()

    assert len(features) == 19
    assert [what for what, _, tests in features if "`test_" not in tests] == []


def resolved(dotted: str) -> bool:
    """Say whether a name such as `cut.Cut` is there, in the protocol or above."""
    for prefix in ("cutwater.protocol.", "cutwater."):
        parts = (prefix + dotted).split(".")
        for length in range(len(parts), 1, -1):
            if find_module(".".join(parts[:length])):
                found: object = importlib.import_module(".".join(parts[:length]))
                for name in parts[length:]:
                    found = getattr(found, name, None)
                if found is not None:
                    return True
    return False


def find_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_what_the_table_of_features_names_is_there() -> None:
    named = {
        (what, name)
        for what, where, _ in seed_features()
        for name in re.findall(r"`([a-z_]+(?:\.\w+)*)`", where)
        if "." in name or name != "completed_count"
    }

    assert {row for row in named if not resolved(row[1])} == set()
    assert len(named) >= 25


def test_a_name_that_is_not_there_would_be_noticed() -> None:
    assert resolved("checkpoint.attempt.Attempt.missing")
    assert resolved("store.maintenance.inspect.Inspector.one")
    assert not resolved("checkpoint.attempt.Attempt.missed")
    assert not resolved("checkpoints")

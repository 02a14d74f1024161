"""Pages that tell people what to type: every command is given, and the tables are what they say."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.command import SPARK_DEADLINE_S
from tests.cli.documents import run_document


def rows(table: Path, *columns: str) -> list[tuple[object, ...]]:
    found = DeltaTable(table).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[one] for one in columns) for row in found)


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    directory = tmp_path / "here"
    directory.mkdir()

    said = run_document("tutorial/README.md", directory, SPARK_DEADLINE_S)

    state = next(one.output for one in said if "state show" in one.commands)
    assert state.splitlines()[-1] == "1 row"
    wrong, right = (one.output for one in said if "hourly_totals" in one.commands)
    assert "50000.0" in wrong
    assert "50000.0" not in right
    assert [one[0] for one in rows(directory / "tables" / "all_orders", "id")] == [1, 2, 3, 4, 5]
    totals = rows(directory / "tables" / "hourly_totals", "shop", "total")
    assert totals == [("north", 10.0), ("north", 30.0), ("south", 20.0), ("south", 50.0)]


@pytest.mark.long
def test_a_bad_deploy_is_rewound_as_its_page_says(tmp_path: Path) -> None:
    directory = tmp_path / "here"
    directory.mkdir()

    said = run_document("how-to/rewind-a-bad-deploy.md", directory, SPARK_DEADLINE_S)

    bad = next(one.output for one in said if "to_pandas" in one.commands)
    assert "250000.0" in bad
    amounts = rows(directory / "tables" / "big_orders", "id", "amount")
    assert amounts == [(1, 1500.0), (4, 2500.0), (5, 3500.0)]

"""Pages that tell people what to type: every command is given, and the tables are what they say."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.command import SPARK_DEADLINE_S
from tests.cli.documents import run_document


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a reader of a page has gone to."""
    here = tmp_path / "here"
    here.mkdir()
    return here


def rows(table: Path, *columns: str) -> list[tuple[object, ...]]:
    found = DeltaTable(table).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in found)


def test_the_tutorial_does_what_it_says(directory: Path) -> None:
    said = run_document("tutorial/README.md", directory, SPARK_DEADLINE_S)

    state = next(one.output for one in said if "state show" in one.commands)
    assert state.splitlines()[-1] == "1 row"
    wrong, right = (one.output for one in said if "hourly_totals" in one.commands)
    assert "50000.0" in wrong
    assert "50000.0" not in right
    assert [row[0] for row in rows(directory / "tables" / "all_orders", "id")] == [1, 2, 3, 4, 5]
    totals = rows(directory / "tables" / "hourly_totals", "shop", "total")
    assert totals == [("north", 10.0), ("north", 30.0), ("south", 20.0), ("south", 50.0)]


@pytest.mark.long
def test_a_bad_deploy_is_rewound_as_its_page_says(directory: Path) -> None:
    said = run_document("how-to/rewind-a-bad-deploy.md", directory, SPARK_DEADLINE_S)

    bad = next(one.output for one in said if "to_pandas" in one.commands)
    assert "250000.0" in bad
    amounts = rows(directory / "tables" / "big_orders", "id", "amount")
    assert amounts == [(1, 1500.0), (4, 2500.0), (5, 3500.0)]


@pytest.mark.long
def test_dead_letters_go_where_their_page_says(directory: Path) -> None:
    run_document("how-to/dead-letters.md", directory, SPARK_DEADLINE_S)

    assert rows(directory / "tables" / "good_orders", "id", "amount") == [(1, 10.0)]
    dead = rows(directory / "tables" / "dead_letters", "body")
    assert dead == [("not even JSON",), ('{"id": 3, "amount": "a lot"}',)]


@pytest.mark.long
def test_a_pipeline_is_tested_as_its_page_says(directory: Path) -> None:
    said = run_document("how-to/test-a-pipeline.md", directory, SPARK_DEADLINE_S)

    assert "3 passed" in said[-1].output


@pytest.mark.long
def test_blue_and_green_part_as_their_page_says(directory: Path) -> None:
    said = run_document("how-to/blue-green-by-fork.md", directory, SPARK_DEADLINE_S)

    compared = next(one.output for one in said if "state show orders totals" in one.commands)
    assert compared.index("6.0") < compared.index("10.0")
    assert rows(directory / "tables" / "blue" / "totals", "customer", "total") == [
        ("ada", 6.0),
        ("bob", 5.0),
    ]
    assert rows(directory / "tables" / "green" / "totals", "customer", "total") == [("bob", 5.0)]


@pytest.mark.long
def test_a_backfill_goes_over_into_a_stream_as_its_page_says(directory: Path) -> None:
    run_document("how-to/backfill-then-stream.md", directory, SPARK_DEADLINE_S)

    totals = rows(directory / "tables" / "totals", "customer", "total")
    assert totals == [("ada", 15.0), ("bob", 20.0)]


@pytest.mark.long
def test_a_declarative_project_is_run_and_rewound_as_its_page_says(directory: Path) -> None:
    said = run_document("how-to/run-a-declarative-pipeline.md", directory, SPARK_DEADLINE_S)

    first, rewound = (one.output for one in said if "pandas.read_parquet" in one.commands)
    assert "north    10.0" in first
    assert "north    19.0" in rewound
    assert "2 rows" in said[-1].output

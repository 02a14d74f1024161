"""Targets looked at while a pipeline is planned: what is refused, what is only said, and no trace.

The tables are real: Delta tables on this disk and tables of a real PostgreSQL server.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import DoubleType, LongType, StringType, StructType
from tests.servers.postgres import PASSWORD, Database, PostgresServer

from cutwater import Pipeline, sinks
from cutwater.errors import PlanError
from cutwater.ids import StepId
from cutwater.pipeline.nodes import SinkTarget
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.sinks.checks import check_targets

ROWS = StructType().add("id", LongType()).add("name", StringType())


def looked_at(target: SinkTarget, rows: StructType | None = ROWS) -> tuple[str, ...]:
    """Plan a pipeline with one sink and look at its target; return what was not looked at."""
    return check_targets(planned(target), {} if rows is None else {StepId("out"): rows})


def refusal(target: SinkTarget, rows: StructType | None = ROWS) -> str:
    with pytest.raises(PlanError) as refused:
        looked_at(target, rows)
    (problem,) = refused.value.problems
    place, name, reason = problem.split(": ", 2)
    assert place.startswith(f"{__file__}:")
    assert name == "sink out"
    return reason


def planned(*targets: SinkTarget) -> PhysicalPlan:
    pipeline = Pipeline("orders")
    pipeline.source(lambda spark: spark, name="orders")
    for number, target in enumerate(targets):
        pipeline.sink("out" if not number else f"out{number}", target, of="orders")
    return plan(pipeline)


def snapshot(directory: Path) -> list[tuple[str, float]]:
    return sorted((str(path), path.stat().st_mtime) for path in directory.rglob("*"))


# -- Delta


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "t", pa.table({"id": [1], "name": ["a"]}))
    return tmp_path / "t"


def use_features(table: Path, *, reader: list[str], writer: list[str]) -> None:
    """Let another program's table be: the last version says which features it uses."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    named = {**protocol, "readerFeatures": reader, "writerFeatures": writer}
    version = DeltaTable(table).version() + 1
    file = table / "_delta_log" / f"{version:020d}.json"
    file.write_text(json.dumps({"protocol": named}) + "\n")


@pytest.mark.parametrize(
    ("reader", "writer", "said"),
    [
        ([], ["rowTracking", "domainMetadata"], "features domainMetadata, rowTracking, which"),
        (["deletionVectors"], ["deletionVectors"], "features deletionVectors, which"),
        (["unheardOf"], ["unheardOf"], "Feature 'unheardOf' is not supported"),
    ],
)
def test_table_features_that_are_not_known_are_refused_with_table_reason_and_way_out(
    table: Path, reader: list[str], writer: list[str], said: str
) -> None:
    use_features(table, reader=reader, writer=writer)
    before = snapshot(table.parent)

    for rows in (None, ROWS):
        reason = refusal(sinks.delta(str(table)), rows)

        assert reason.startswith(f"{table} cannot be ")
        assert said in reason
        assert "or name another" in reason
    assert snapshot(table.parent) == before


def test_a_table_that_cannot_take_the_rows_is_refused(table: Path) -> None:
    target = sinks.delta(str(table))
    other = StructType().add("id", StringType())

    assert looked_at(target) == looked_at(target, None) == ()
    assert refusal(target, other).startswith("column id is bigint in the table and string in")
    assert "partitioned by [], not by ['name']" in refusal(
        sinks.delta(str(table), partition_by=["name"])
    )
    keyed = sinks.delta(str(table), write="upsert", keys=["shop"])
    assert "it has no column shop, which keys names" in refusal(keyed, None)
    assert "keys names shop, and the columns are id, name" in refusal(keyed)
    (table.parent / "other").mkdir()
    (table.parent / "other" / "notes.txt").touch()
    assert "holds notes.txt and no Delta table" in refusal(sinks.delta(str(table.parent / "other")))


def test_where_there_is_no_table_yet_the_rows_alone_are_looked_at(tmp_path: Path) -> None:
    target = sinks.delta(str(tmp_path / "a" / "b"), write="upsert", keys=["id"])

    assert looked_at(target) == ()
    assert "keys names id, which is double" in refusal(target, StructType().add("id", DoubleType()))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_looked_at_is_said_and_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    (said,) = looked_at(sinks.delta(str(tmp_path / "file" / "t")))

    assert said.startswith(f"The target of sink out was not looked at: sink out: {tmp_path}/file/t")
    assert looked_at(sinks.console()) == ()


# -- PostgreSQL


@pytest.fixture
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Database:
    return postgres.make_database(request.node.name)


def test_a_postgres_table_is_looked_at_and_nothing_is_made(database: Database) -> None:
    target = sinks.postgres(database.dsn, table="orders")
    keyed = sinks.postgres(database.dsn, table="orders", write="upsert", keys=["id"])
    elsewhere = sinks.postgres(database.dsn, table="shop.orders")

    assert looked_at(target) == looked_at(keyed) == ()
    assert refusal(elsewhere, None) == (
        'shop.orders is in no schema that is there; CREATE SCHEMA "shop", or name another one'
    )
    assert "the rows have no column id, one of the keys" in refusal(
        keyed, StructType().add("name", StringType())
    )
    database.query("CREATE TABLE orders (id bigint, name int, at date NOT NULL)")
    assert "no primary key or unique index on exactly (id)" in refusal(keyed, None)
    assert "column name of public.orders is integer, and the rows have text" in refusal(target)
    database.query("ALTER TABLE orders ALTER name TYPE text")
    assert "column at of public.orders is NOT NULL without a default" in refusal(target)
    database.query("ALTER TABLE orders ALTER at DROP NOT NULL, ADD PRIMARY KEY (id)")
    assert looked_at(target) == looked_at(keyed) == ()
    database.query("CREATE VIEW seen AS SELECT * FROM orders")
    assert refusal(sinks.postgres(database.dsn, table="seen")).startswith(
        "public.seen is not a table"
    )
    assert database.query("SELECT to_regnamespace('_cutwater')") == [["<null>"]]


def test_a_database_that_is_away_is_said_without_its_password(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_DSN", raising=False)

    (away,) = looked_at(sinks.postgres(database.dsn_at(1), table="orders"))
    (unknown,) = looked_at(sinks.postgres("env:SHOP_DSN", table="orders"))

    assert away.startswith("The target of sink out was not looked at: sink out: ")
    assert PASSWORD not in away
    assert unknown == (
        "The target of sink out was not looked at: dsn: the environment has no SHOP_DSN."
    )


def test_a_table_whose_rows_are_replaced_belongs_to_one_sink(
    tmp_path: Path, database: Database
) -> None:
    def shared(*targets: SinkTarget) -> list[str]:
        try:
            check_targets(planned(*targets))
        except PlanError as error:
            return [problem.split(": ", 1)[1] for problem in error.problems]
        return []

    def delta(write: str = "append", keys: tuple[str, ...] = ()) -> SinkTarget:
        return sinks.delta(str(tmp_path / "t"), write=write, keys=keys)

    append = sinks.postgres(database.dsn, table="t")
    upsert = sinks.postgres(database.dsn, table="t", write="upsert", keys=["id"])
    elsewhere = sinks.postgres(database.dsn, table="u", write="upsert", keys=["id"])

    assert shared(append, append) == shared(append, elsewhere) == shared(delta(), delta()) == []
    for targets in ((append, upsert), (upsert, append), (upsert, upsert)):
        (problem,) = shared(*targets)
        assert problem.startswith("sink out1: sink out writes to postgresql://127.0.0.1:")
        assert "/t as well, and write='upsert' needs it alone; union the rows" in problem
        assert PASSWORD not in problem
    (problem,) = shared(delta(), delta("upsert", ("id",)))
    assert f"sink out writes to {tmp_path}/t as well, and write='upsert'" in problem


def test_all_targets_are_looked_at_and_everything_is_said_at_once(
    table: Path, database: Database
) -> None:
    use_features(table, reader=[], writer=["rowTracking"])
    database.query("CREATE VIEW seen AS SELECT 1 AS id")
    pipeline = planned(sinks.delta(str(table)), sinks.postgres(database.dsn, table="seen"))

    with pytest.raises(PlanError) as refused:
        check_targets(pipeline)

    assert [problem.split(": ")[1] for problem in refused.value.problems] == [
        "sink out",
        "sink out1",
    ]

"""State at a checkpoint, read from the store alone, against what arithmetic says of the input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.golden.archives import unpacked
from tests.spark.features import needs
from tests.spark.runs import DEADLINE_S, options, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks
from cutwater.cli.commands.state import DiffArguments, ShowArguments, diff_command, show_command
from cutwater.cli.output import Output
from cutwater.errors import ConfigError
from cutwater.ids import BatchId, CheckpointId, StepId
from cutwater.run import PipelineRun
from cutwater.spark.checkpoint_dir.files import pin, settle
from cutwater.spark.checkpoint_dir.state_files import operators
from cutwater.step_state.reading import StepState

pytestmark = needs("transformWithState on rows")
NAME = "kept"
SCHEMA = "id long, k string, v long"
HOUR_S = 1_700_002_800
HOUR = {"start": "2023-11-14T23:00:00.000Z", "end": "2023-11-15T00:00:00.000Z"}
LATER_MS = 4_102_444_800_000

Sale = tuple[int, str, int]
FIRST: list[Sale] = [(1, "a", 10), (2, "b", 20), (3, "a", 30), (3, "c", -5)]
SECOND: list[Sale] = [(4, "b", 5), (5, "d", 7), (1, "a", 10)]


class Cuts(NamedTuple):
    """A store, and the checkpoints after the first rows and after all of them."""

    store: Path
    ids: tuple[int, int]


class Remembers(StatefulProcessor):
    """Keeps a value, a list and a map for each key, and a timer that never rings."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "v long")
        self._ids = handle.getListState("ids", "id long")
        self._by_id = handle.getMapState("by_id", "id long", "v long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401 - Spark's type
        rows: Iterator[Row],
        timerValues: Any,  # noqa: ANN401, ARG002, N803 - Spark's
    ) -> Iterator[Row]:
        found = sorted((row["id"], row["v"]) for row in rows)
        held = self._total.get()
        total = (held[0] if held is not None else 0) + sum(v for _, v in found)
        self._total.update((total,))
        for entry, v in found:
            self._ids.appendValue((entry,))
            self._by_id.updateValue((entry,), (v,))
        self._handle.registerTimer(LATER_MS)
        yield Row(k=key[0], total=total)

    def close(self) -> None:
        pass


def pipeline(directory: Path) -> Pipeline:
    made = Pipeline(NAME)

    @made.source
    def sales(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(str(directory / "sales"))

    @made.view
    def every(sales: DataFrame) -> DataFrame:
        return sales.withColumn("at", F.timestamp_seconds(F.lit(HOUR_S)))

    @made.step(partitions=2)
    def unique(every: DataFrame) -> DataFrame:
        return every.dropDuplicates(["id", "k"])

    @made.step(partitions=2)
    def pairs(every: DataFrame) -> DataFrame:
        others = every.select(F.col("k").alias("o"), F.col("v").alias("w")).where("w >= 10")
        return every.join(others, F.expr("k = o")).select("id", "k", "w")

    @made.step(partitions=2)
    def remembered(every: DataFrame) -> DataFrame:
        return every.groupBy("k").transformWithState(
            statefulProcessor=Remembers(),
            outputStructType="k string, total long",
            outputMode="append",
            timeMode="processingTime",
        )

    @made.step(partitions=2)
    def totals(every: DataFrame) -> DataFrame:
        hours = every.withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), "k")
        return hours.agg(F.sum("v").alias("sum"), F.count("*").alias("n")).select("k", "sum", "n")

    for step in (unique, pairs, remembered, totals):
        made.sink(f"{step.__name__}_table", sinks.delta(str(directory / step.__name__)), of=step)
    return made


def write(directory: Path, name: str, rows: list[Sale]) -> None:
    lines = (json.dumps(dict(zip(("id", "k", "v"), row, strict=True))) for row in rows)
    directory.mkdir(exist_ok=True)
    # At once: a running source would read what is there of it, and never the rest.
    hidden = directory / f".{name}"
    hidden.write_text("\n".join(lines), encoding="utf-8")
    hidden.rename(directory / name)


@pytest.fixture(scope="module")
def cuts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Cuts:
    """What a pipeline has left behind that does not run any more."""
    directory = tmp_path_factory.mktemp("state")
    given = options(directory, checkpoint=CheckpointConfig(interval="1h", unaligned=False))
    write(directory / "sales", "1.json", FIRST)
    running = pipeline(directory).start(spark, given)
    first = _checkpoint_after(running, len(FIRST))
    write(directory / "sales", "2.json", SECOND)
    second = _checkpoint_after(running, len(FIRST + SECOND))
    running.kill()
    assert running.wait(DEADLINE_S) is not None
    return Cuts(directory / "store", (first, second))


def _checkpoint_after(running: PipelineRun, rows: int) -> int:
    """Take a checkpoint once the source has delivered; the barrier comes behind those rows."""
    wait_until(
        running,
        lambda status: any(step.name == "every" and step.rows == rows for step in status.steps),
        f"{rows} rows",
    )
    report = running.checkpoint(DEADLINE_S)
    assert report.status == "COMPLETED", report
    return report.id


def rows_of(spark: SparkSession, cuts: Cuts, at: int, *which: str) -> list[Any]:
    step, *operator = which
    frame = cutwater.state(
        spark,
        cuts.store,
        NAME,
        step,
        checkpoint=cuts.ids[at],
        operator=operator[0] if operator else None,
    )
    kept = [column for column in frame.columns if column != "partition_id"]
    return sorted(tuple(row) for row in frame.select(*kept).collect())


def sums(rows: list[Sale]) -> dict[str, tuple[int, int]]:
    keys = sorted({k for _, k, _ in rows})
    return {
        k: (sum(v for _, o, v in rows if o == k), sum(o == k for _, o, _ in rows)) for k in keys
    }


@pytest.mark.matrix
@pytest.mark.parametrize("at", [0, 1])
def test_every_kind_of_state_is_what_the_rows_before_the_checkpoint_make_it(
    spark: SparkSession, cuts: Cuts, at: int
) -> None:
    seen = FIRST if at == 0 else FIRST + SECOND

    totals = rows_of(spark, cuts, at, "totals")
    unique = rows_of(spark, cuts, at, "unique", "dedupe")
    left, right = (rows_of(spark, cuts, at, "pairs", side) for side in ("left", "0:right"))
    value, ids, entries, timers = (
        rows_of(spark, cuts, at, "remembered", name) for name in ("total", "ids", "by_id", "timers")
    )

    assert {key.k: tuple(value) for key, value in totals} == sums(seen)
    assert [tuple(key) for key, _ in unique] == sorted({(number, k) for number, k, _ in seen})
    # Of the left side Spark keeps only what the result needs.
    assert sorted((row.id, row.k) for _, row in left) == sorted((i, k) for i, k, _ in seen)
    big = sorted((k, v) for _, k, v in seen if v >= 10)
    assert sorted((row.o, row.w) for _, row in right) == big
    assert {key.k: row.v for key, row in value} == {k: found[0] for k, found in sums(seen).items()}
    for key, held in ids:
        assert sorted(entry.id for entry in held) == sorted(
            number for number, k, _ in seen if k == key.k
        )
    assert {(key.k, entry.id): row.v for key, entry, row in entries} == {
        (k, i): v for i, k, v in seen
    }
    assert sorted((key.k, ms) for key, ms in timers) == [(k, LATER_MS) for k in sorted(sums(seen))]


def test_a_diff_says_which_keys_came_went_and_changed(
    cuts: Cuts, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = cuts.ids
    store = cuts.store
    asked: dict[str, Any] = {
        "pipeline": NAME,
        "step": "totals",
        "store": str(store),
        "output": Output.JSON,
    }

    diff_command(DiffArguments(before=str(first), after=str(second), **asked))
    there = json.loads(capsys.readouterr().out)
    diff_command(DiffArguments(before=str(second), after=str(first), limit=1, **asked))
    back = json.loads(capsys.readouterr().out)
    diff_command(
        DiffArguments(
            before=str(first), after="latest", **{**asked, "step": "pairs"}, operator="left"
        )
    )
    rows = json.loads(capsys.readouterr().out)

    old, new = sums(FIRST), sums(FIRST + SECOND)
    assert {
        change["key"]["k"]: (change["change"], change["before"], change["after"])
        for change in there["changes"]
    } == {
        k: (
            "changed" if k in old else "added",
            [{"sum": old[k][0], "count": old[k][1]}] if k in old else None,
            [{"sum": new[k][0], "count": new[k][1]}],
        )
        for k in new
        if old.get(k) != new[k]
    }
    assert there["counts"] == {"added": 1, "removed": 0, "changed": 2, "same": 1}
    assert back["counts"] == {"added": 0, "removed": 1, "changed": 2, "same": 1}
    assert [change["key"]["k"] for change in back["changes"]] == ["a"]
    (a,) = (row for row in rows["changes"] if row["key"] == {"field0": "a"})
    assert [row["id"] for row in a["before"]] == [1, 3]
    assert [row["id"] for row in a["after"]] == [1, 1, 3]


def test_rows_are_shown_sorted_bounded_and_by_key(
    cuts: Cuts, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {
        "pipeline": NAME,
        "store": str(cuts.store),
        "checkpoint": str(cuts.ids[0]),
    }

    show_command(ShowArguments(step="totals", **asked, limit=2, output=Output.JSON))
    shown = json.loads(capsys.readouterr().out)
    show_command(
        ShowArguments(step="totals", **asked, key=["k=a", "window.start=2023-11-14 23:00:00"])
    )
    text = capsys.readouterr().out

    assert (shown["count"], [row["key"]["k"] for row in shown["rows"]]) == (3, ["a", "b"])
    assert shown["rows"][0]["key"]["window"] == HOUR
    assert shown["rows"][0]["value"] == {"sum": 40, "count": 2}
    assert shown["operator"] == {"id": 0, "name": "stateStoreSave", "part": None, "partitions": 2}
    assert text.splitlines()[-1] == "1 row"
    assert "40" in text


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"step": "nothing"}, "has no step nothing"),
        ({"step": "every"}, "every keeps no state; steps that do: pairs, remembered, totals, uni"),
        ({"step": "pairs"}, r"name one of 0:left \(symmetricHashJoin\), 0:right"),
        ({"step": "totals", "operator": "left"}, "keeps nothing called left; it has 0"),
        ({"step": "totals", "checkpoint": "99"}, "checkpoint 99 is not there"),
        ({"step": "totals", "key": ["x=1"]}, "write FIELD=VALUE: window.start, window.end, k"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    cuts: Cuts, asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        show_command(ShowArguments(pipeline=NAME, store=str(cuts.store), **asked))


def test_reading_leaves_the_store_as_it_was(spark: SparkSession, cuts: Cuts) -> None:
    store = cuts.store

    def everything() -> dict[str, tuple[int, int]]:
        files = (path for path in sorted(store.rglob("*")))
        return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}

    before = everything()

    rows_of(spark, cuts, 0, "totals")
    diff_command(
        DiffArguments(
            pipeline=NAME,
            step="totals",
            store=str(store),
            before=str(cuts.ids[0]),
            after=str(cuts.ids[1]),
        )
    )

    assert everything() == before


@pytest.mark.parametrize("kind", ["hdfs-aggregation", "rocksdb-1-changelog-aggregation"])
def test_state_that_an_adopted_query_began_in_an_older_format_is_read_too(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    at = BatchId(3)

    def shown(name: str) -> list[Any]:
        directory = tmp_path / f"{name}-rebuilt"
        pin(unpacked(name, tmp_path), at, directory, linked=False)
        settle(directory)
        state = StepState(StepId("x"), CheckpointId(1), at, 0, directory, operators(directory, at))
        return sorted(tuple(row) for row in state.frame(spark, state.part(None)).collect())

    assert shown(kind) == shown("rocksdb-2-aggregation") != []

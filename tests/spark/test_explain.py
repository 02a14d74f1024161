"""What Spark says of a planned pipeline, before anything runs."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import example, options

from cutwater import Pipeline, sinks, sources
from cutwater.errors import PlanError
from cutwater.planning.planner import plan
from cutwater.planning.rendering import as_json, draw
from cutwater.sinks.checks import check_targets
from cutwater.spark.analysis.explain import explain, look

Node = Callable[..., DataFrame]


def drawn(pipeline: Pipeline, spark: SparkSession) -> str:
    planned = plan(pipeline)
    return draw(planned, explain(planned, spark))


def numbers(spark: SparkSession) -> DataFrame:
    return sources.sequence(spark, total=10)


def pipeline_of(step: Node, *others: Node) -> Pipeline:
    """A source with a channel behind it, these steps, and a sink of the first."""
    pipeline = Pipeline("wrong")
    pipeline.source(numbers, chain=False)
    for call in (step, *others):
        pipeline.step(call)
    pipeline.sink("table", sinks.delta("nowhere"), of=step)
    return pipeline


def problems(pipeline: Pipeline, spark: SparkSession) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        explain(plan(pipeline), spark)
    return caught.value.problems


def test_the_tree_shows_how_every_step_of_the_diamond_runs(spark: SparkSession) -> None:
    pipeline = example("diamond").create()

    assert drawn(pipeline, spark) == "\n".join(
        [
            "pipeline diamond: 5 steps, 4 channels, 1 sink",
            "├── step numbers (append mode)",
            "│   ├── source numbers  [diamond.py:50]",
            "│   ├── runs as a query, keeps no state",
            "│   │   rows: value bigint, at timestamp",
            "│   └── channel numbers → fast, slow",
            "│       why: source numbers is used by fast and slow: it is read once, "
            "for all its uses",
            "│       holds rows: the source reads neither files nor Kafka",
            "├── step prices (append mode)",
            "│   ├── source prices  [diamond.py:54]",
            "│   ├── runs as a query, keeps no state, watermark 10 s behind offered",
            "│   │   rows: lot bigint, offered timestamp, price bigint",
            "│   └── channel prices → both",
            "│       why: source prices is not chained into both, which reads fast and slow as "
            "well: a step reads outside sources or channels, never both",
            "│       holds rows: the source reads neither files nor Kafka",
            "├── step fast (append mode)",
            "│   ├── reads channel numbers as fast(numbers)",
            "│   ├── step fast  [diamond.py:64]",
            "│   ├── runs as batches, keeps no state, watermark 10 s behind at",
            "│   │   rows: value bigint, at timestamp, twice bigint",
            "│   └── channel fast → both",
            "│       why: step fast has its own state and pace, and is used by both",
            "├── step slow (append mode, max_batch 64KB)",
            "│   ├── reads channel numbers as slow(numbers)",
            "│   ├── step slow  [diamond.py:68]",
            "│   ├── runs as batches, keeps no state, watermark 10 s behind since",
            "│   │   rows: number bigint, since timestamp, thrice bigint",
            "│   └── channel slow → both",
            "│       why: step slow has its own state and pace, and is used by both",
            "└── step both (append mode)",
            "    ├── reads channel fast as both(fast)",
            "    ├── reads channel slow as both(slow)",
            "    ├── reads channel prices as both(prices)",
            "    ├── step both  [diamond.py:75]",
            "    ├── sink joined → delta out/diamond  [diamond.py:82]",
            "    │   write append, commits at every checkpoint, visibility checkpoint",
            "    └── runs as a query, keeps state in 2 partitions, watermark 10 s behind at",
            "        rows: value bigint, twice bigint, thrice bigint, price bigint, at timestamp",
        ]
    )


def test_the_json_of_a_step_has_what_spark_says(spark: SparkSession) -> None:
    planned = plan(example("windows").create())

    written = json.loads(json.dumps(as_json(planned, explain(planned, spark))))

    assert written["version"] == 1
    assert written["steps"][0]["spark"] == {
        "way": "query",
        "stateful": True,
        "partitions": 2,
        "event_time": True,
        "watermark": None,
        "sources": ["sequence"],
        "columns": [
            {"name": "start", "type": "timestamp"},
            {"name": "end", "type": "timestamp"},
            {"name": "page", "type": "bigint"},
            {"name": "count", "type": "bigint"},
        ],
        "by_reference": False,
        "why_by_reference": "",
    }


def test_a_delay_is_told_in_the_json_of_the_step_that_has_it(spark: SparkSession) -> None:
    planned = plan(example("diamond").create())

    written = as_json(planned, explain(planned, spark))

    told = json.loads(json.dumps(written))["steps"][2]["spark"]
    assert told["watermark"] == {"column": "at", "delay_ms": 10_000}
    assert (told["way"], told["stateful"], told["partitions"]) == ("batch", False, None)


def test_what_is_said_is_what_runs(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = example("union").create(total="10", table=str(tmp_path / "t"))
    facts = explain(plan(pipeline), spark)

    run = pipeline.start(spark, options(tmp_path))
    kinds = {step.name: step.kind for step in run.status().steps}
    run.wait(60)

    assert {name: fact.way for name, fact in facts.items()} == kinds
    assert set(kinds.values()) == {"query", "batch"}


def test_partitions_are_those_the_step_asks_for(spark: SparkSession) -> None:
    pipeline = Pipeline("counted")
    pipeline.source(numbers)

    @pipeline.step(partitions=5)
    def seen(numbers: DataFrame) -> DataFrame:
        return numbers.dropDuplicates(["value"])

    pipeline.sink("table", sinks.delta("nowhere"), of=seen)

    facts = explain(plan(pipeline), spark)

    assert [fact.partitions for fact in facts.values()] == [5]


def test_nothing_is_made_by_looking(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    explain(plan(example("three_sinks").create()), spark)

    assert list(tmp_path.iterdir()) == []
    assert spark.streams.active == []


def test_all_that_spark_refuses_is_told_at_once_with_function_and_line(
    spark: SparkSession,
) -> None:
    def broken(numbers: DataFrame) -> DataFrame:
        return numbers.select("no_such_column")

    def sorted_rows(numbers: DataFrame) -> DataFrame:
        return numbers.orderBy("value")

    def behind(broken: DataFrame) -> DataFrame:
        return broken

    pipeline = pipeline_of(behind, broken, sorted_rows)
    pipeline.sink("other", sinks.delta("elsewhere"), of=sorted_rows)

    found = problems(pipeline, spark)

    line = broken.__code__.co_firstlineno
    place = pipeline.nodes[3].place
    assert len(found) == 2
    assert found[0].startswith(
        f"{__file__}:{line + 1}: step broken raises AnalysisException: "
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"
    )
    assert found[1].startswith(f"{place.file}:")
    assert "step sorted_rows cannot run as a stream: " in found[1]


def test_a_watermark_above_several_channels_is_refused(spark: SparkSession) -> None:
    pipeline = Pipeline("late")
    pipeline.source(numbers, chain=False)
    pipeline.source(numbers, name="others", chain=False)

    @pipeline.step
    def both(numbers: DataFrame, others: DataFrame) -> DataFrame:
        return numbers.unionByName(others).withWatermark("at", "1 second")

    pipeline.sink("table", sinks.delta("nowhere"), of=both)

    (problem,) = problems(pipeline, spark)

    assert "sets a watermark above several channels" in problem


def test_state_behind_a_merge_is_refused_although_a_step_lies_between(
    spark: SparkSession,
) -> None:
    pipeline = Pipeline("late")
    pipeline.source(numbers, chain=False)
    pipeline.source(numbers, name="others", chain=False)

    @pipeline.step
    def both(numbers: DataFrame, others: DataFrame) -> DataFrame:
        return numbers.unionByName(others)

    @pipeline.step
    def windows(both: DataFrame) -> DataFrame:
        rows = both.withWatermark("at", "1 second")
        return rows.groupBy(F.window("at", "1 second")).count()

    pipeline.sink("table", sinks.delta("nowhere"), of=windows)

    (problem,) = problems(pipeline, spark)

    assert "which step both merges from several inputs" in problem


def test_a_source_that_is_not_a_stream_is_refused(spark: SparkSession) -> None:
    pipeline = Pipeline("static")

    @pipeline.source
    def rows(spark: SparkSession) -> DataFrame:
        return spark.range(3).toDF("value")

    pipeline.sink("table", sinks.delta("nowhere"), of=rows)

    (problem,) = problems(pipeline, spark)

    assert problem.endswith("returns a DataFrame that is not streaming; read with readStream.")


def test_a_table_that_cannot_take_the_rows_is_refused_before_anything_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    write_deltalake(table, pa.table({"value": ["a"], "at": ["b"]}))
    pipeline = Pipeline("orders")
    pipeline.source(numbers)
    pipeline.sink("table", sinks.delta(str(table)), of=numbers)
    planned = plan(pipeline)

    with pytest.raises(PlanError, match="sink table: column value is string in the table"):
        check_targets(planned, {name: step.schema for name, step in look(planned, spark).items()})
    log = table / "_delta_log" / f"{1:020d}.json"
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    log.write_text(json.dumps({"protocol": features}))
    with pytest.raises(PlanError, match=r"sink table: .* features rowTracking, which are not"):
        pipeline.start(spark, options(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["t"]

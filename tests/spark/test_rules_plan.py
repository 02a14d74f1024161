"""What is refused before anything runs, and what runs in the one way that is right for it.

Only Spark's analysed plan shows these; each error names the user's function and line.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.features import needs
from tests.spark.runs import options, run, table, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.errors import CodeChanged, PlanError
from cutwater.pipeline.nodes import SinkTarget
from cutwater.planning.planner import plan
from cutwater.spark.analysis.explain import explain, look

Read = Callable[[SparkSession], DataFrame]
Work = Callable[[DataFrame, DataFrame], DataFrame]


def numbers(spark: SparkSession) -> DataFrame:
    return sources.sequence(spark, total=1000, batch_max=100)


def refused(pipeline: Pipeline, spark: SparkSession, directory: Path) -> str:
    with pytest.raises(PlanError) as caught:
        pipeline.start(spark, options(directory))
    assert not list((directory / "t").glob("_delta_log/*"))
    return str(caught.value)


# -- event time over several channels (F9)


def merged_first(left: DataFrame, right: DataFrame) -> DataFrame:
    both = left.unionByName(right).withWatermark("at", "2 seconds")
    return both.groupBy(F.window("at", "1 second")).count().select("count")


def marked_first(left: DataFrame, right: DataFrame) -> DataFrame:
    lefts = left.withWatermark("at", "2 seconds")
    both = lefts.unionByName(right.withWatermark("at", "2 seconds"))
    return both.groupBy(F.window("at", "1 second")).count().select("count")


def ten_seconds(batch_max: int) -> Read:
    """Ten seconds of event time, a number a millisecond, in batches of so many."""
    return lambda spark: sources.sequence(spark, total=10_000, batch_max=batch_max)


def two_channels(work: Work, directory: Path) -> Pipeline:
    """One in four times the batches of the other, so that it lags."""
    pipeline = Pipeline("merging")
    pipeline.source(ten_seconds(500), name="left", chain=False)
    pipeline.source(ten_seconds(2000), name="right", chain=False)
    pipeline.step(work)
    pipeline.sink("t", sinks.delta(str(directory / "t")), of=work)
    return pipeline


def test_a_watermark_above_several_channels_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    message = refused(two_channels(merged_first, tmp_path), spark, tmp_path)

    assert "merged_first" in message
    assert "set the watermark on each input" in message
    assert re.search(rf"{re.escape(__file__)}:\d+: step merged_first", message)


def test_a_watermark_on_each_of_several_channels_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Checkpoints hold one input and the other again and again, and no row is late by it."""
    often = CheckpointConfig(interval="100ms", min_pause="1ms", unaligned=False)

    result = run(two_channels(marked_first, tmp_path), spark, options(tmp_path, checkpoint=often))

    assert result.finished
    assert result.checkpoints >= 5
    # The watermark ends two seconds before 9.999 s: seven windows are closed by it.
    assert table(tmp_path / "t", "count") == [(2 * 1000,)] * 7


# -- types that cannot be held


def odd(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr(
        "value",
        "map('k', array(make_interval(1, 2, 3))) AS span",
        "array(named_struct()) AS nothings",
        "named_struct('m', map('K' COLLATE UNICODE_CI, 1)) AS words",
    )


def test_types_that_parquet_cannot_hold_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Everything else comes back as it was: tests/spark/test_channel_types.py."""
    pipeline = Pipeline("odd")
    pipeline.source(numbers, chain=False)
    pipeline.step(odd)
    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=odd)
    pipeline.sink("out", sinks.console(), of=lambda numbers: numbers.select())

    message = refused(pipeline, spark, tmp_path)

    found = re.findall(rf"{re.escape(__file__)}:\d+: step odd gives column (.*); cast", message)
    assert found == [
        "span of type interval, which Parquet cannot hold",
        "nothings of type struct without fields, which Parquet cannot hold",
        "words of type map with the key string collate UNICODE_CI, which Parquet cannot hold",
    ]
    assert "sink out gives no columns; select some." in message


@pytest.mark.parametrize(
    ("column", "target", "reason"),
    [
        ("INTERVAL '1' DAY", "delta", "the type interval day, which a Delta table cannot hold"),
        pytest.param(
            *("array(null)", "delta", "column x.element has the type void, which a Delta table"),
            marks=needs("a column of the type void"),
        ),
        pytest.param(
            *("null", "csv", "column x has the type void, which csv files cannot hold; cast it"),
            marks=needs("a column of the type void"),
        ),
        ("map(1, 'a')", "csv", "column x has the type map<int,string>, which csv files cannot"),
        pytest.param(
            *("null", "postgres", "column x has no type; cast it to one"),
            marks=needs("a column of the type void"),
        ),
    ],
)
def test_a_type_that_a_sink_cannot_hold_is_refused(
    spark: SparkSession, tmp_path: Path, column: str, target: str, reason: str
) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    targets: dict[str, SinkTarget] = {
        "delta": sinks.delta(str(tmp_path / "t")),
        "csv": sinks.files(str(tmp_path / "files"), "csv"),
        "postgres": sinks.postgres(nowhere, table="t"),
    }
    pipeline = Pipeline("odd")
    pipeline.source(numbers)
    pipeline.sink("t", targets[target], of=lambda numbers: numbers.selectExpr(f"{column} AS x"))

    if target == "delta":
        message = refused(pipeline, spark, tmp_path)
    else:
        # As `cutwater plan`: a start would have asked for the database by now.
        with pytest.raises(PlanError) as caught:
            look(plan(pipeline), spark)
        message = str(caught.value)

    assert re.search(rf"{re.escape(__file__)}:\d+: sink t: .*{re.escape(reason)}", message)


# -- sources that forget (F12)


def socket(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("socket").option("host", "127.0.0.1")
    return reader.option("port", "9").load()


def cleaned(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.schema("value string").option("cleanSource", "delete")
    return reader.text(str(Path(__file__).parent))


@pytest.mark.parametrize(
    ("read", "reason"),
    [(socket, "cannot be read again"), (cleaned, "cleanSource=delete")],
    ids=["socket", "cleanSource"],
)
def test_a_source_that_forgets_what_it_has_read_is_refused(
    spark: SparkSession, tmp_path: Path, read: Read, reason: str
) -> None:
    pipeline = Pipeline("forgetting")
    pipeline.source(read)
    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=read)

    message = refused(pipeline, spark, tmp_path)

    assert reason in message
    assert re.search(rf"{re.escape(__file__)}:\d+: source {read.__name__} ", message)


# -- tables of the pipeline's own (F40)


def own_static(spark: SparkSession, rows: DataFrame, path: str) -> DataFrame:
    return rows.join(spark.read.schema("value long").parquet(path), "value")


def own_by_the_newer_reader(spark: SparkSession, rows: DataFrame, path: str) -> DataFrame:
    older = spark.conf.get("spark.sql.sources.useV1SourceList")
    spark.conf.set("spark.sql.sources.useV1SourceList", "")
    try:
        return own_static(spark, rows, path)
    finally:
        spark.conf.set("spark.sql.sources.useV1SourceList", str(older))


def own_in_a_subquery(spark: SparkSession, rows: DataFrame, path: str) -> DataFrame:
    spark.read.schema("value long").parquet(path).createOrReplaceTempView("own_table")
    rows.createOrReplaceTempView("own_rows")
    most = "SELECT max(value) FROM own_table"
    return spark.sql(f"SELECT * FROM own_rows WHERE value > ({most})")


def own_stream(spark: SparkSession, rows: DataFrame, path: str) -> DataFrame:
    return rows.unionByName(spark.readStream.schema("value long, at timestamp").parquet(path))


@pytest.mark.parametrize(
    "work", [own_static, own_by_the_newer_reader, own_in_a_subquery, own_stream]
)
@pytest.mark.parametrize("written", ["t", "other"], ids=["own", "foreign"])
def test_a_step_that_reads_what_a_sink_of_its_pipeline_writes_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    work: Callable[[SparkSession, DataFrame, str], DataFrame],
    written: str,
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    pipeline = Pipeline("circle")
    pipeline.source(numbers)

    @pipeline.view
    def known(spark: SparkSession, numbers: DataFrame) -> DataFrame:
        return work(spark, numbers, str(tmp_path / "link"))

    pipeline.step(lambda known: known.select("value"), name="kept")
    pipeline.sink("t", sinks.delta(str(tmp_path / written)), of="kept")

    if written == "t":
        with pytest.raises(PlanError) as caught:
            explain(plan(pipeline), spark)
        found = rf"{re.escape(__file__)}:\d+: view known reads file:{re.escape(str(tmp_path))}/"
        assert re.search(found, str(caught.value).replace(" reads /", " reads file:/"))
        assert re.search(rf"which sink t \({re.escape(__file__)}:\d+\) writes", str(caught.value))
        assert "read kept itself" in str(caught.value)
    else:
        assert explain(plan(pipeline), spark)


# -- another shape (F16)


def test_a_cut_of_another_shape_is_refused_by_the_name_of_what_is_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = Pipeline("changing")
    before.source(numbers)
    before.sink("t", sinks.delta(str(tmp_path / "t")), of=numbers)
    after = Pipeline("changing")
    after.source(numbers)
    after.step(same, inputs=["numbers"])
    after.sink("t", sinks.delta(str(tmp_path / "t")), of=same)
    after.sink("other", sinks.delta(str(tmp_path / "other")), of=numbers)
    run(before, spark, options(tmp_path))
    shown = table(tmp_path / "t", "value")

    with pytest.raises(CodeChanged, match=r"\n  sink other is new: .* --allow-new\.\n"):
        run(after, spark, options(tmp_path))

    assert table(tmp_path / "t", "value") == shown


def same(rows: DataFrame) -> DataFrame:
    return rows


# -- streaming work stays streaming (F34)


def over_a_channel(work: Callable[[DataFrame], DataFrame], directory: Path) -> Pipeline:
    pipeline = Pipeline("streaming")
    pipeline.source(numbers, chain=False)
    pipeline.step(work, inputs=["numbers"])
    pipeline.sink("t", sinks.delta(str(directory / "t")), of=work)
    return pipeline


def sorted_rows(rows: DataFrame) -> DataFrame:
    return rows.orderBy(F.desc("value"))


def limited_rows(rows: DataFrame) -> DataFrame:
    return rows.limit(250)


def filtered_rows(rows: DataFrame) -> DataFrame:
    return rows.where("value % 2 = 0")


def test_an_order_of_all_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    message = refused(over_a_channel(sorted_rows, tmp_path), spark, tmp_path)

    assert "sorted_rows" in message
    assert "cannot run as a stream" in message


@pytest.mark.parametrize(
    ("work", "way"),
    [
        pytest.param(limited_rows, "query", marks=needs("a limit on a stream")),
        (filtered_rows, "batch"),
    ],
)
def test_only_work_without_memory_runs_as_batch_jobs(
    spark: SparkSession, tmp_path: Path, work: Callable[[DataFrame], DataFrame], way: str
) -> None:
    running = over_a_channel(work, tmp_path).start(spark, options(tmp_path))
    kinds = {step.name: step.kind for step in running.status().steps}
    result = running.wait(240)

    assert kinds[work.__name__] == way
    assert result is not None
    expected = {"limited_rows": 250, "filtered_rows": 500}[work.__name__]
    assert len(table(tmp_path / "t", "value")) == expected


# -- update mode (F31)


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy((F.col("value") % 3).alias("key")).agg(F.count("*").alias("total"))


def test_updates_into_a_step_need_their_keys(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("updating")
    pipeline.source(numbers)
    pipeline.step(totals, inputs=["numbers"], output_mode="update")
    pipeline.step(same, inputs=["totals"])
    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=same)

    message = refused(pipeline, spark, tmp_path)

    assert "updates=[" in message
    assert f"{__file__}:" in message


def test_updates_into_a_table_of_appended_rows_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("updating")
    pipeline.source(numbers)
    pipeline.step(totals, inputs=["numbers"], output_mode="update")
    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=totals)

    assert "takes append mode" in refused(pipeline, spark, tmp_path)


# -- one channel, several inputs of a step (F38)


def test_a_step_joins_a_channel_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("selfish")
    pipeline.source(numbers)

    @pipeline.step(inputs=["numbers", "numbers"])
    def doubled(left: DataFrame, right: DataFrame) -> DataFrame:
        rights = right.select((F.col("value") / 2).cast("long").alias("half"))
        return left.join(rights, F.col("value") == F.col("half")).select("value")

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=doubled)

    run(pipeline, spark, options(tmp_path))

    assert table(tmp_path / "t", "value") == [(number,) for number in range(500) for _ in range(2)]


def test_two_views_of_one_source_meet_in_one_step(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("views")
    pipeline.source(numbers)
    pipeline.view(filtered_rows, name="even", inputs=["numbers"])

    @pipeline.view
    def odd(numbers: DataFrame) -> DataFrame:
        return numbers.where("value % 2 = 1")

    @pipeline.step
    def again(even: DataFrame, odd: DataFrame) -> DataFrame:
        return even.unionByName(odd).select("value")

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=again)

    running = pipeline.start(spark, options(tmp_path))
    wait_until(running, lambda status: len(status.channels) == 2, "two inputs")
    assert running.wait(240) is not None

    assert table(tmp_path / "t", "value") == [(number,) for number in range(1000)]

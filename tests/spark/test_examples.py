"""Every example, run to its end, shows exactly what a batch computation gives."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.features import needs
from tests.spark.runs import collected, example, options, ordered, run, table

import cutwater
from cutwater import CheckpointConfig, sources
from cutwater.errors import ConfigError


def test_the_diamond_joins_every_row_of_two_sources_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    create = example("diamond").create
    pipeline = create(total="3950", slow_us="50", table=str(tmp_path / "t"))

    result = run(pipeline, spark, options(tmp_path))

    assert result.finished
    assert result.checkpoints > 1
    # The last price holds for half as many numbers as the others.
    assert table(tmp_path / "t", "value", "twice", "thrice", "price") == [
        (number, number * 2, number * 3, number // 100 % 7 + 1) for number in range(3950)
    ]


def test_windows_are_emitted_once_the_watermark_has_passed(
    spark: SparkSession, tmp_path: Path
) -> None:
    create = example("windows").create

    result = run(create(total="9500", table=str(tmp_path / "t")), spark, options(tmp_path))

    assert result.finished
    start = datetime(2026, 1, 1)  # noqa: DTZ001 - as the sequence begins, in UTC
    watermark = start + timedelta(milliseconds=9499) - timedelta(seconds=3)
    expected = [
        (begin, page, len([number for number in range(at, at + 2000) if number % 7 == page]))
        for at in range(0, 9500, 2000)
        for begin in [start + timedelta(milliseconds=at)]
        if begin + timedelta(seconds=2) <= watermark
        for page in range(7)
    ]
    found = [
        (begin.replace(tzinfo=None), page, count)
        for begin, page, count in table(tmp_path / "t", "start", "page", "count")
    ]
    assert found == sorted(expected)


@pytest.mark.matrix
@needs("transformWithState on rows")
def test_state_of_transform_with_state_counts_every_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    create = example("transform_with_state").create

    result = run(create(total="3000", table=str(tmp_path / "t")), spark, options(tmp_path))

    assert result.finished
    assert table(tmp_path / "t", "key", "nth", "value") == [
        (key, nth, key + 5 * (nth - 1)) for key in range(5) for nth in range(100, 601, 100)
    ]


def test_a_union_keeps_the_rows_of_both_and_begins_only_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = example("union").create(total="5000", table=str(tmp_path / "t"))
    anew = options(tmp_path, start_from="none")

    result = run(pipeline, spark, anew)

    assert result.finished
    with pytest.raises(ConfigError, match="union has checkpoints, and a new start would write"):
        pipeline.start(spark, anew)
    assert table(tmp_path / "t", "channel", "value") == sorted(
        [("web", number) for number in range(5000)] + [("store", number) for number in range(2500)]
    )


def test_three_sinks_of_one_source(spark: SparkSession, tmp_path: Path) -> None:
    create = example("three_sinks").create

    result = run(create(total="12000", tables=str(tmp_path)), spark, options(tmp_path))

    assert result.finished
    amounts = [(number, number * 37 % 1000) for number in range(12000)]
    assert table(tmp_path / "all", "value", "amount") == amounts
    assert table(tmp_path / "large", "value", "amount") == [
        (one, amount) for one, amount in amounts if amount > 900
    ]
    # 4,000 rows a second: the watermark is one second behind the last of three.
    sums = [row[1] for row in table(tmp_path / "sums", "start", "sum")]
    assert sums == [sum(amount for _, amount in amounts[:4000])]


def test_a_static_side_gives_names_and_checkpoints_go_to_the_usual_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("static_join")
    monkeypatch.chdir(tmp_path)

    result = module.create(total="4000", table=str(tmp_path / "t")).run(
        spark, CheckpointConfig(interval="1s")
    )

    assert result.finished
    assert cutwater.read(spark, ".cutwater/store", "static_join", "named_visits").count() == 4000
    found = ordered(table_with_nulls(tmp_path / "t"))
    assert found == ordered((number, module.COUNTRIES.get(number % 6)) for number in range(4000))


def table_with_nulls(path: Path) -> list[tuple[int, str | None]]:
    from deltalake import DeltaTable  # noqa: PLC0415

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return [(row["value"], row["name"]) for row in rows]


@needs("reading the state of a step (`cutwater state`, `cutwater.state`)")
def test_the_auctions_match_a_batch_computation_and_are_forgotten(
    spark: SparkSession, tmp_path: Path
) -> None:
    create = example("auctions").create
    total, rate, market = 24_000, 6_000, sources.Market(active_people=100)

    pipeline = create(total=str(total), rate=str(rate), tables=str(tmp_path), active="100")
    result = run(pipeline, spark, options(tmp_path))

    assert result.finished
    # The watermark is two seconds behind the last of four. A person is active for another second.
    kept = [
        cutwater.state(spark, tmp_path / "store", "auctions", "sellers", operator=side).count()
        for side in ("left", "right")
    ]
    assert kept == pytest.approx([1440 * 2 / 4, 480 * 3 / 4], abs=10)
    events = spark.range(total)
    auctions, people, bids = (
        sources.nexmark_rows(events, kind, rate=rate, market=market)
        for kind in ("auction", "person", "bid")
    )
    who = people.selectExpr("id AS seller", "name", "city")
    expected = auctions.join(who, "seller")
    columns = ("id", "seller", "name", "city", "category")
    assert ordered(table(tmp_path / "auction_sellers", *columns)) == collected(
        expected.select(*columns)
    )
    euros = (F.col("price") * 0.92).cast("decimal(18,2)").alias("euros")
    high = bids.select("auction", "bidder", euros).where("euros > 1000")
    assert ordered(table(tmp_path / "high_bids", "auction", "bidder", "euros")) == collected(high)

"""Sources on real Spark: a row follows from its number, however and how often it is read.

What a stream gave is always compared, row by row, with a batch frame over the plain numbers.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from cutwater.errors import ConfigError, RecoveryError
from cutwater.sources import Market, nexmark, nexmark_rows, sequence, sequence_rows
from cutwater.sources.nexmark import EventKind
from cutwater.sources.numbered import BATCH_MAX, Numbered, NumberedSource, Pace
from cutwater.spark.jvm.internals import Internals

KINDS: tuple[EventKind, ...] = get_args(EventKind)
FINISH_S = 60

Rows = list[tuple[Any, ...]]


class Collected:
    """A sink that keeps the rows of every batch, in the order in which batches came."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.batches: list[tuple[int, Rows]] = []
        self.fail_at = fail_at

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.batches.append((batch_id, sorted_rows(batch)))
        if batch_id == self.fail_at:
            message = "the sink fails once"
            raise RuntimeError(message)

    @property
    def rows(self) -> Rows:
        return sorted(row for _, rows in self.batches for row in rows)

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in self.batches]


def sorted_rows(frame: DataFrame) -> Rows:
    return sorted(tuple(row) for row in frame.collect())


def read_all(frame: DataFrame, checkpoint: Path, sink: Collected) -> None:
    """Run a stream with Trigger.AvailableNow until it ends by itself."""
    query = start(frame, checkpoint, sink, available_now=True)
    assert query.awaitTermination(FINISH_S)


def start(
    frame: DataFrame, checkpoint: Path, sink: Collected, *, available_now: bool = False
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def wait_until(done: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + FINISH_S
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def counted(spark: SparkSession, pace: Pace, *, name: str = "counted") -> NumberedSource:
    rows = Numbered(name, sequence_rows, rows_before=lambda number: number)
    return NumberedSource(Internals(spark), rows, pace)


# -- sequence


def test_a_sequence_counts_and_its_event_time_follows_its_rate(spark: SparkSession) -> None:
    frame = sequence_rows(spark.range(1_000), rate=3.0, start_time="2026-05-01T12:00:00Z")
    found = frame.selectExpr("value", "unix_micros(at)").orderBy("value").collect()
    start_us = 1_777_636_800_000_000
    assert [tuple(row) for row in found] == [
        (value, start_us + value * 1_000_000 // 3) for value in range(1_000)
    ]


def test_a_sequence_without_a_rate_has_a_thousand_rows_a_second(spark: SparkSession) -> None:
    frame = sequence_rows(spark.range(2_000, 2_001))
    assert frame.selectExpr("unix_micros(at)").first() == (1_767_225_602_000_000,)


def test_event_time_never_goes_back_where_doubles_begin_to_round(spark: SparkSession) -> None:
    first = 2**53 - 1_000
    frame = sequence_rows(spark.range(first, first + 1_000), rate=700_000.7)
    found = frame.orderBy("value").selectExpr("unix_micros(at)").collect()
    times = [row[0] for row in found]
    assert times == sorted(times)


def test_available_now_gives_exactly_the_total_in_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Collected()
    read_all(sequence(spark, total=2_500, batch_max=1_000), tmp_path, sink)
    assert sink.sizes == [1_000, 1_000, 500]
    assert sink.rows == sorted_rows(sequence_rows(spark.range(2_500)))


def test_available_now_does_not_wait_for_the_rate(spark: SparkSession, tmp_path: Path) -> None:
    sink = Collected()
    read_all(sequence(spark, total=500, rate=0.001), tmp_path, sink)
    assert sink.rows == sorted_rows(sequence_rows(spark.range(500), rate=0.001))


def test_the_default_trigger_gives_exactly_the_total(spark: SparkSession) -> None:
    frame = nexmark(spark, "bid", total=2_000, partitions=3, batch_max=777)
    query = frame.writeStream.format("memory").queryName("default_trigger").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    truth = nexmark_rows(spark.range(2_000), "bid")
    assert sorted_rows(spark.table("default_trigger")) == sorted_rows(truth)


def test_a_rate_loses_no_row(spark: SparkSession, tmp_path: Path) -> None:
    sink = Collected()
    query = start(sequence(spark, total=600, rate=1_000.0), tmp_path, sink)
    try:
        wait_until(lambda: sum(sink.sizes) >= 600, query)
    finally:
        query.stop()
    assert sink.rows == sorted_rows(sequence_rows(spark.range(600), rate=1_000.0))


def test_a_source_with_a_rate_does_not_run_ahead(spark: SparkSession) -> None:
    source = counted(spark, Pace(rate=0.001, total=10))
    assert source.latest(None) is None
    assert source.latest('{"counted":7}') == '{"counted":7}'


def test_a_source_without_any_limit_still_has_bounded_batches(spark: SparkSession) -> None:
    assert counted(spark, Pace()).latest(None) == f'{{"counted":{BATCH_MAX}}}'


def test_a_source_is_exhausted_at_its_total_and_not_before(spark: SparkSession) -> None:
    source = counted(spark, Pace(total=25, batch_max=10))
    at: str | None = None
    seen = []
    while not source.exhausted(at):
        at = source.latest(at)
        seen.append(at)
    assert seen == ['{"counted":10}', '{"counted":20}', '{"counted":25}']
    assert source.latest(at) == at
    assert counted(spark, Pace(total=0)).exhausted(None)


@pytest.mark.parametrize(
    "offset", ['{"other":7}', '{"counted":7,"more":1}', '{"counted":"7"}', '{"counted":-1}', "7"]
)
def test_the_offset_of_another_source_is_refused(spark: SparkSession, offset: str) -> None:
    source = counted(spark, Pace(total=10))
    with pytest.raises(RecoveryError, match="counted cannot start at"):
        source.latest(offset)
    with pytest.raises(RecoveryError, match="counted cannot start at"):
        source.exhausted(offset)


def test_an_endless_source_cannot_be_read_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="total: a source without an end"):
        read_all(sequence(spark), tmp_path, Collected())


# -- any partitions, any batches, any restart


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [(1_003, 5, 1_003), (130, 3, 52), (20, 1, 6)])
def test_rows_do_not_depend_on_partitions_and_are_in_the_batch_of_their_number(
    spark: SparkSession, tmp_path: Path, kind: EventKind, cut: tuple[int, int, int]
) -> None:
    total, partitions, batch_max = cut
    sink = Collected()
    frame = nexmark(spark, kind, total=total, partitions=partitions, batch_max=batch_max)
    read_all(frame, tmp_path, sink)
    assert [rows for _, rows in sink.batches] == [
        sorted_rows(nexmark_rows(spark.range(first, min(first + batch_max, total)), kind))
        for first in range(0, total, batch_max)
    ]


def test_a_batch_that_failed_is_repeated_with_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    def frame(partitions: int, batch_max: int) -> DataFrame:
        return nexmark(spark, "bid", total=600, partitions=partitions, batch_max=batch_max)

    failing, going_on = Collected(fail_at=1), Collected()
    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        read_all(frame(partitions=2, batch_max=110), tmp_path, failing)
    read_all(frame(partitions=3, batch_max=260), tmp_path, going_on)
    assert going_on.batches[0] == failing.batches[1]
    whole = sorted(failing.batches[0][1] + going_on.rows)
    assert whole == sorted_rows(nexmark_rows(spark.range(600), "bid"))


def test_a_restart_goes_on_where_the_checkpoint_ends(spark: SparkSession, tmp_path: Path) -> None:
    before, after = Collected(), Collected()
    read_all(sequence(spark, total=700), tmp_path, before)
    read_all(sequence(spark, total=1_000, batch_max=200), tmp_path, after)
    assert before.rows == sorted_rows(sequence_rows(spark.range(700)))
    assert after.rows == sorted_rows(sequence_rows(spark.range(700, 1_000)))
    assert [batch_id for batch_id, _ in after.batches] == [1, 2]


def test_rows_do_not_depend_on_settings_of_the_session(spark: SparkSession) -> None:
    def everything() -> list[Rows]:
        frames = (nexmark_rows(spark.range(200), kind, rate=7.0) for kind in KINDS)
        return [
            sorted_rows(frame.withColumn("dateTime", F.expr("unix_micros(dateTime)")))
            for frame in frames
        ]

    settings = {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "Asia/Kolkata"}
    kept = {key: spark.conf.get(key) for key in settings}
    before = everything()
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        changed = everything()
    finally:
        for key, old in kept.items():
            spark.conf.set(key, str(old))
    assert changed == before


# -- nexmark


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_then_come_bids(
    spark: SparkSession,
) -> None:
    base = 1_767_225_600_000
    numbers = {
        kind: sorted_rows(
            nexmark_rows(spark.range(150), kind).selectExpr(f"unix_millis(dateTime) - {base}")
        )
        for kind in KINDS
    }
    rounds = (0, 50, 100)
    assert numbers == {
        "person": [(first,) for first in rounds],
        "auction": [(first + at,) for first in rounds for at in range(1, 4)],
        "bid": [(first + at,) for first in rounds for at in range(4, 50)],
    }


def test_ids_are_consecutive_from_a_thousand(spark: SparkSession) -> None:
    people = nexmark_rows(spark.range(5_000), "person").select("id")
    auctions = nexmark_rows(spark.range(5_000), "auction").select("id")
    assert sorted_rows(people) == [(1_000 + at,) for at in range(100)]
    assert sorted_rows(auctions) == [(1_000 + at,) for at in range(300)]
    assert nexmark_rows(spark.range(5_000), "bid").count() == 4_600


@pytest.mark.parametrize("market", [Market(), Market(active_people=3, in_flight_auctions=2)])
def test_no_person_or_auction_is_named_before_it_exists(
    spark: SparkSession, market: Market
) -> None:
    people, auctions, bids = (
        nexmark_rows(spark.range(30_000), kind, market=market) for kind in KINDS
    )
    for frame, key, named in (
        (auctions, "seller", people),
        (bids, "bidder", people),
        (bids, "auction", auctions),
    ):
        known = named.selectExpr("id AS known", "dateTime AS since")
        earlier = (F.col(key) == F.col("known")) & (F.col("since") < F.col("dateTime"))
        assert frame.join(known, earlier, "left_anti").count() == 0


@pytest.mark.parametrize("market", [Market(active_people=150), Market(active_people=3)])
def test_a_person_is_active_for_as_long_as_the_market_says(
    spark: SparkSession, market: Market
) -> None:
    base = 1_767_225_600_000
    for kind, key in (("auction", "seller"), ("bid", "bidder")):
        rows = nexmark_rows(spark.range(100_000), cast("EventKind", kind), market=market)
        # A thousand events a second: an event's number is its milliseconds.
        since = f"unix_millis(dateTime) - {base} - 50 * ({key} - 1000)"
        (longest,) = rows.selectExpr(f"max({since})").collect()[0]
        assert market.active_events - 100 < longest < market.active_events


def test_hot_auctions_sellers_and_bidders_get_their_share(spark: SparkSession) -> None:
    auctions = nexmark_rows(spark.range(200_000), "auction")
    bids = nexmark_rows(spark.range(200_000), "bid")

    def share(frame: DataFrame, key: str, remainder: int) -> float:
        hot = F.avg(F.expr(f"CAST({key} % 100 = {remainder} AS INT)"))
        return float(frame.select(hot).collect()[0][0])

    assert share(bids, "auction", 0) == pytest.approx(1 / 2 + 1 / 2 / 100, abs=0.01)
    assert share(auctions, "seller", 0) == pytest.approx(3 / 4 + 1 / 4 / 100, abs=0.01)
    assert share(bids, "bidder", 1) == pytest.approx(3 / 4 + 1 / 4 / 100, abs=0.01)


def test_a_market_without_hot_ones_is_even(spark: SparkSession) -> None:
    even = Market(hot_auction_ratio=1, hot_seller_ratio=1, hot_bidder_ratio=1, active_people=10)
    bids = nexmark_rows(spark.range(100_000, 101_000), "bid", market=even)
    newest = 1_000 + 100_000 // 50
    found = {row[0] for row in bids.select("bidder").collect()}
    assert found == set(range(newest - 9, newest + 20))


def test_values_are_in_the_ranges_of_the_benchmark(spark: SparkSession) -> None:
    people, auctions, bids = (nexmark_rows(spark.range(50_000), kind) for kind in KINDS)
    broken = {
        "person": people.where(
            "NOT coalesce(name RLIKE '^[A-Z][a-z]+ [A-Z][a-z]+$' AND length(state) = 2 "
            "AND emailAddress RLIKE '^[a-p]{3,6}@[a-p]{3,4}.com$' "
            "AND creditCard RLIKE '^([0-9]{4} ){3}[0-9]{4}$' AND city IS NOT NULL "
            "AND length(extra) BETWEEN 100 AND 170, false)"
        ),
        "auction": auctions.where(
            "NOT coalesce(length(itemName) BETWEEN 3 AND 19 AND length(description) BETWEEN 3 "
            "AND 99 AND initialBid BETWEEN 100 AND 100000000 AND reserve > initialBid "
            "AND category BETWEEN 10 AND 14 AND expires > dateTime "
            "AND expires <= dateTime + INTERVAL 3334 MILLISECONDS "
            "AND length(extra) BETWEEN 300 AND 470, false)"
        ),
        "bid": bids.where(
            "NOT coalesce(price BETWEEN 100 AND 100000000 "
            "AND channel RLIKE '^(Google|Facebook|Baidu|Apple|channel-[0-9]{1,4})$' "
            "AND url RLIKE '^https://www.nexmark.com/([a-p]{4}/){3}item.htm.query=1' "
            "AND length(extra) BETWEEN 50 AND 82, false)"
        ),
    }
    assert {kind: frame.count() for kind, frame in broken.items()} == dict.fromkeys(KINDS, 0)


def test_a_channel_has_one_address(spark: SparkSession) -> None:
    bids = nexmark_rows(spark.range(20_000), "bid")
    addresses = bids.groupBy("channel").agg(F.countDistinct("url").alias("count"))
    assert addresses.where("count <> 1").count() == 0
    with_number = bids.where("url LIKE '%&channel_id=%'")
    assert with_number.where(
        "NOT url LIKE concat('%&channel_id=', substring(channel, 9))"
    ).isEmpty()
    assert not with_number.isEmpty()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("person", 2995916942358494171),
        ("auction", -2796794112227372264),
        ("bid", 935690193783593669),
    ],
)
def test_the_stream_is_the_same_as_in_every_version_before(
    spark: SparkSession, kind: EventKind, expected: int
) -> None:
    # Offsets outlive versions: what an offset gives may not change.
    hashed = nexmark_rows(spark.range(5_000), kind).selectExpr("xxhash64(*) AS hash")
    assert hashed.selectExpr("bit_xor(hash)").collect()[0][0] == expected


# -- what Spark makes of it


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_made_by_spark_alone_and_only_the_requested_ones(
    spark: SparkSession, tmp_path: Path, kind: EventKind
) -> None:
    frame = nexmark(spark, kind, total=5_000).select("dateTime")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(FINISH_S)
    plan = str(query._jsq.explainInternal(False))
    rows = {"person": 100, "auction": 300, "bid": 4_600}[kind]
    assert f"Range (0, {rows}, step=1" in plan
    assert not re.search("Exchange|Python|Filter|Scan|hash", plan)


def test_a_batch_frame_needs_neither_python_nor_a_shuffle(spark: SparkSession) -> None:
    for kind in KINDS:
        rows = nexmark_rows(spark.range(500), kind)
        plan = str(rows._jdf.queryExecution().executedPlan().toString())
        assert "Range" in plan
        assert not re.search("Exchange|Python", plan)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda spark: nexmark(spark, cast("EventKind", "seller")), "kind"),
        (lambda spark: nexmark_rows(spark.range(1), cast("EventKind", "seller")), "kind"),
        (lambda spark: nexmark(spark, "bid", start_time="now"), "start_time"),
        (lambda spark: nexmark(spark, "bid", rate=-1.0), "rate"),
        (lambda spark: nexmark(spark, "bid", partitions=0), "partitions"),
        (lambda spark: sequence(spark, start_time="2026-01-01"), "start_time"),
        (lambda spark: sequence(spark, rate=0), "rate"),
        (lambda spark: sequence(spark, total=-5), "total"),
        (lambda spark: sequence(spark, batch_max=0), "batch_max"),
        (lambda _: Market(hot_seller_ratio=0), "hot_seller_ratio"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_starts(
    spark: SparkSession, make: Callable[[SparkSession], object], option: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(spark)
    assert caught.value.option == option

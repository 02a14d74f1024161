"""Code that changes between two runs: state, positions and tables go on exactly.

Every run processes what is there and ends, so the pipeline of the next run is restored from a cut
with nothing in flight. What the tables must show is computed from the input alone.
"""

import json
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import DEADLINE_S, options, run, starter, table, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.cli.commands.plan import PlanArguments, PlanOutput, show_change
from cutwater.errors import CodeChanged, RecoveryError
from cutwater.planning.planner import plan
from cutwater.runtime.reporting.status import CheckpointReport

Order = dict[str, Any]
SCHEMA = "id long, customer string, region string, amount long"


class Shop:
    """Orders in directories, and the pipelines that read them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.orders: dict[str, list[Order]] = defaultdict(list)

    def write(self, place: str, count: int) -> None:
        """Let one more file of orders appear."""
        first = sum(len(order) for order in self.orders.values())
        rows = [
            {
                "id": number,
                "customer": f"c{number % 7}",
                "region": f"r{number % 3}",
                "amount": number - 5,
            }
            for number in range(first, first + count)
        ]
        self.orders[place] += rows
        into = self.directory / place
        into.mkdir(exist_ok=True)
        hidden = into / f".{first:05}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(into / f"{first:05}")

    def pipeline(
        self,
        *,
        place: str = "backfill",
        key: str = "customer",
        big: bool = False,
        regions: bool = False,
    ) -> Pipeline:
        """Orders, of which valid ones are counted; and, if asked for, more of them."""
        made = Pipeline("shop")

        @made.source
        def orders(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema(SCHEMA).json(str(self.directory / place))

        @made.view
        def valid(orders: DataFrame) -> DataFrame:
            return orders.where("amount > 0")

        @made.step(output_mode="update", partitions=2)
        def totals(valid: DataFrame) -> DataFrame:
            return valid.groupBy(key).agg(F.sum("amount").alias("total"), F.count("*").alias("n"))

        @made.step(updates=[key])
        def newest(totals: DataFrame) -> DataFrame:
            return totals

        made.sink("t", sinks.delta(str(self.directory / "t")), of=newest)
        if big:

            @made.sink(sinks.delta(str(self.directory / "big")))
            def large(valid: DataFrame) -> DataFrame:
                return valid.where("amount > 40").select("id", "amount")

        if regions:

            @made.step(partitions=1)
            def first(valid: DataFrame) -> DataFrame:
                return valid.dropDuplicates(["region"]).select("region")

            made.sink("regions", sinks.delta(str(self.directory / "regions")), of=first)
        return made

    def totals(self) -> dict[str, tuple[int, int]]:
        """What the newest row of every customer must say, from the input alone."""
        found: dict[str, tuple[int, int]] = {}
        for row in (row for rows in self.orders.values() for row in rows):
            if row["amount"] > 0:
                total, number = found.get(row["customer"], (0, 0))
                found[row["customer"]] = (total + row["amount"], number + 1)
        return found

    def shown(self) -> dict[str, tuple[int, int]]:
        """The newest row of every customer: updates are appended, and counts only grow."""
        found: dict[str, tuple[int, int]] = {}
        for customer, total, number in table(self.directory / "t", "customer", "total", "n"):
            if number > found.get(customer, (0, 0))[1]:
                found[customer] = (total, number)
        return found


def test_state_goes_on_through_added_removed_and_swapped_parts(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path)

    def go(pipeline: Pipeline, **given: Any) -> None:  # noqa: ANN401
        assert run(pipeline, spark, options(tmp_path, available_now=True, **given)).finished
        assert shop.shown() == shop.totals()

    shop.write("backfill", 80)
    go(shop.pipeline())

    # A second consumer of the view: it becomes a step, and takes the source with it.
    with pytest.raises(CodeChanged, match=r"sink large is new: .* after checkpoint .*--allow-new"):
        run(shop.pipeline(big=True), spark, options(tmp_path, available_now=True))
    assert not (tmp_path / "big" / "_delta_log").exists()
    shop.write("backfill", 25)
    late = [row for row in shop.orders["backfill"][80:] if row["amount"] > 40]
    go(shop.pipeline(big=True), allow_new=True)
    assert table(tmp_path / "big", "id", "amount") == [
        (entry["id"], entry["amount"]) for entry in late
    ]
    shop.write("backfill", 10)
    go(shop.pipeline(big=True))

    # What would become of it can be seen before.
    arguments = PlanArguments(target="", store=str(tmp_path / "store"), master="local[2]")
    assert show_change(plan(shop.pipeline(big=True)), arguments, "shop", starter(spark)) == 0
    assert "  step totals resumes where it was\n" in capsys.readouterr().out
    as_json = replace(arguments, output=PlanOutput.JSON)
    assert show_change(plan(shop.pipeline()), as_json, "shop", starter(spark)) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(step["name"], step["fate"], step["rebuilt"]) for step in told["steps"]] == [
        ("totals", "kept", True),
        ("newest", "kept", False),
        ("large", "dropped", False),
        ("valid", "merged", False),
    ]
    assert [refusal["subject"] for refusal in told["refusals"]] == ["sink large"]

    # Other keys mean other state.
    with pytest.raises(CodeChanged) as refused:
        run(shop.pipeline(key="region", big=True), spark, options(tmp_path, available_now=True))
    assert (
        "step totals keys the state of its Aggregate by region string now, and keyed it by "
        "customer string. Change it back, or give the step another name"
    ) in str(refused.value)

    # Without it again: the source goes back into the step that counts.
    with pytest.raises(CodeChanged, match=r"sink large is gone\. .*--allow-dropped"):
        run(shop.pipeline(), spark, options(tmp_path, available_now=True))
    shop.write("backfill", 20)
    go(shop.pipeline(), allow_dropped=True)
    kept = table(tmp_path / "big", "id", "amount")
    shop.write("backfill", 5)
    go(shop.pipeline())
    assert table(tmp_path / "big", "id", "amount") == kept

    # The past came from files; the stream begins elsewhere.
    shop.write("stream", 40)
    go(shop.pipeline(place="stream"), swap=("orders",))
    shop.write("stream", 15)
    # The same command again, as after a crash: what was swapped is not begun anew.
    go(shop.pipeline(place="stream"), swap=("orders",))
    go(shop.pipeline(place="stream", big=True), allow_new=True)

    # A step with state that joins a channel in the middle of its life sees what comes.
    shop.write("stream", 2)
    new = {row["region"] for row in shop.orders["stream"][-2:]}
    go(shop.pipeline(place="stream", big=True, regions=True), allow_new=True)
    assert table(tmp_path / "regions", "region") == sorted((entry,) for entry in new)
    shop.write("stream", 15)
    go(shop.pipeline(place="stream", big=True, regions=True))
    assert table(tmp_path / "regions", "region") == [("r0",), ("r1",), ("r2",)]


def test_a_source_moves_in_and_out_of_a_step_without_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As a query, as batch jobs, and as a query over a channel, which a static join makes it."""
    dimension = spark.range(7).withColumnRenamed("id", "key")

    def pipeline(*, chain: bool, joined: bool = False) -> Pipeline:
        made = Pipeline("moving")

        @made.source(chain=chain)
        def numbers(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("value long").json(str(tmp_path / "in"))

        @made.step
        def kept(numbers: DataFrame) -> DataFrame:
            found = numbers.withColumn("twice", F.col("value") * 2)
            if joined:
                found = found.join(dimension, F.col("value") % 7 == F.col("key"))
            return found.select("value", "twice")

        made.sink("t", sinks.delta(str(tmp_path / "t")), of=kept)
        return made

    shapes = [(True, False), (False, False), (False, True), (True, True), (False, False)]
    for number, (chain, joined) in enumerate(shapes):
        rows = [{"value": one} for one in range(number * 10, number * 10 + 10)]
        (tmp_path / "in").mkdir(exist_ok=True)
        file = tmp_path / "in" / f".{number}"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file.rename(tmp_path / "in" / f"{number}")
        now = options(tmp_path, available_now=True)
        assert run(pipeline(chain=chain, joined=joined), spark, now).finished
        # No row is kept back, so that one which was read twice shows.
        expected = [(one, one * 2) for one in range(number * 10 + 10)]
        assert table(tmp_path / "t", "value", "twice") == expected


def test_rows_in_flight_keep_the_wiring_and_lose_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    total = 20_000

    def pipeline(
        *, middle: bool = False, also: bool = False, slow: bool = False, timed: bool = False
    ) -> Pipeline:
        made = Pipeline("flying")

        @made.source(chain=False)
        def numbers(spark: SparkSession) -> DataFrame:
            return sources.sequence(spark, total=total, rate=400.0 if slow else None)

        if middle:
            made.step(lambda numbers: numbers.where("value >= 0"), name="middle")

        @made.step(inputs=["middle" if middle else "numbers"], max_batch="1KB")
        def kept(rows: DataFrame) -> DataFrame:
            # Spark takes a function with type hints for one of another kind.
            slowly = F.udf(lambda value: held_up(value), "long")  # noqa: PLW0108
            rows = rows.where("at is not null") if timed else rows
            return rows.select((slowly("value") if slow else rows.value).alias("value"))

        made.sink("t", sinks.delta(str(tmp_path / "t")), of=kept)
        if also:
            made.sink("u", sinks.delta(str(tmp_path / "u")), of="numbers")
        return made

    forced = options(tmp_path, checkpoint=CheckpointConfig(interval="500ms", unaligned="forced"))
    running = pipeline(slow=True).start(spark, forced)
    wait_until(running, lambda now: any(map(_flies, now.checkpoints)), "rows in flight")
    running.kill()
    running.wait(DEADLINE_S)

    with pytest.raises(CodeChanged, match=r"step kept reads channel middle now .* a savepoint"):
        run(pipeline(middle=True), spark, options(tmp_path))
    with pytest.raises(RecoveryError, match="without the columns at, which step kept reads now"):
        run(pipeline(timed=True), spark, options(tmp_path))
    # The sink that is added reads both columns, but none of the rows that were in flight.
    assert run(pipeline(also=True), spark, options(tmp_path, allow_new=True)).finished

    assert table(tmp_path / "t", "value") == [(number,) for number in range(total)]
    (first,), *_ = seen = table(tmp_path / "u", "value")
    assert 0 < first < total
    assert None not in {at for (at,) in table(tmp_path / "u", "at")}
    assert seen == [(number,) for number in range(first, total)]


def held_up(value: int) -> int:
    """Take a while for every row."""
    time.sleep(0.01)
    return value


def _flies(report: CheckpointReport) -> bool:
    return report.status == "COMPLETED" and report.in_flight_bytes > 0

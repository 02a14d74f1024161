"""One life of a query, as its owner sees it: plain Spark, adopted, grown, moved, plain again.

Every word is typed as `docs/how-to/adopt-and-leave.md` says it, each into a process of its own. The
oracle is plain Python over all that was ever put into the directories: after every stage, what the
plain queries and the tables have shown together is each complete window, once.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.cli.command import SPARK_DEADLINE_S, cutwater, environment

DELAY_S = 150
COUNTING = """
from pyspark.sql import functions as F


def counted(orders):
    rows = orders.withWatermark("t", "150 seconds")
    windows = rows.groupBy(F.window("t", "1 minute"), "shop")
    return windows.agg(F.count("*").alias("n"), F.sum("amount").alias("total")).select(
        F.date_format("window.start", "yyyy-MM-dd HH:mm").alias("start"), "shop", "n", "total"
    )
"""
PLAIN = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from counting import counted

incoming, checkpoint, out = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)


def write(frame, batch):
    rows = [row.asDict() for row in frame.collect()]
    Path(out, f"{batch:05}.json").write_text(json.dumps(rows))


orders = spark.readStream.schema("shop string, amount long, t timestamp")
stream = counted(orders.option("maxFilesPerTrigger", "1").json(incoming))
query = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""
PIPELINE = """
from counting import counted
from cutwater import Pipeline, sinks

orders = Pipeline("orders")


@orders.source(name="orders")
def read(spark):
    stream = spark.readStream.schema("shop string, amount long, t timestamp")
    return stream.option("maxFilesPerTrigger", "1").json("INCOMING")


orders.step(counted, name="totals", output_mode="append")
orders.sink("windows", sinks.delta("windows"), of="totals")
"""
ADDED = """

@orders.sink(sinks.delta("large"))
def large(orders):
    return orders.where("amount > 80").select("shop", "amount")
"""

Order = tuple[str, int, datetime]
Window = tuple[str, str, int, int]


@dataclass
class Life:
    """A directory with everything in it, and what was put into it."""

    home: Path
    orders: list[Order] = field(default_factory=list)
    minute: int = 0

    def file(self, **parts: str) -> None:
        """Edit the pipeline."""
        text = PIPELINE.replace("INCOMING", parts["reads"]) + parts.get("and_has", "")
        (self.home / "orders.py").write_text(text)

    def arrive(self, place: str, files: int = 2) -> None:
        """Let files of orders arrive, a minute in each, with some of the minute before it."""
        (self.home / place).mkdir(exist_ok=True)
        for _ in range(files):
            self.minute += 1
            begins = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=self.minute)
            new = [
                (
                    f"shop-{number % 3}",
                    self.minute * 7 + number,
                    begins + timedelta(seconds=5 * number - 20),
                )
                for number in range(14)
            ]
            self.orders += new
            lines = (json.dumps({"shop": s, "amount": a, "t": str(t)[:19]}) for s, a, t in new)
            hidden = self.home / place / f".{self.minute:03}"
            hidden.write_text("\n".join(lines))
            os.utime(hidden, (1_700_000_000 + self.minute,) * 2)
            hidden.rename(self.home / place / f"{self.minute:03}.json")

    def complete(self) -> list[Window]:
        """The windows that are complete by now."""
        until = max(t for _, _, t in self.orders) - timedelta(seconds=DELAY_S)
        found: dict[tuple[datetime, str], list[int]] = {}
        for shop, amount, at in self.orders:
            found.setdefault((at.replace(second=0), shop), []).append(amount)
        return sorted(
            (f"{start:%Y-%m-%d %H:%M}", shop, len(amounts), sum(amounts))
            for (start, shop), amounts in found.items()
            if start + timedelta(minutes=1) <= until
        )

    def plain(self, place: str, checkpoint: str, out: str) -> None:
        """Run the plain query over what is there."""
        (self.home / out).mkdir(exist_ok=True)
        words = [sys.executable, "plain.py", place, checkpoint, out]
        subprocess.run(
            words, cwd=self.home, env=environment(), timeout=SPARK_DEADLINE_S, check=True
        )

    def type(self, *words: str) -> Any:  # noqa: ANN401 - JSON, or nothing
        """Type a command."""
        spark = () if words[0] == "eject" else ("--master", "local[2]")
        said = cutwater(*words, *spark, cwd=self.home, deadline_s=SPARK_DEADLINE_S)
        assert said.returncode == 0, said.stdout + said.stderr
        return json.loads(said.stdout) if "json" in words else None

    def shown(self) -> list[Window]:
        """What the plain queries and the table have shown so far."""
        rows = [
            row
            for out in ("before", "after")
            for file in (self.home / out).glob("*.json")
            for row in json.loads(file.read_text())
        ]
        if (self.home / "windows").exists():
            rows += DeltaTable(self.home / "windows").to_pyarrow_table().to_pylist()
        return sorted((row["start"], row["shop"], row["n"], row["total"]) for row in rows)

    def large(self) -> list[tuple[str, int]]:
        rows = DeltaTable(self.home / "large").to_pyarrow_table().to_pylist()
        return sorted((row["shop"], row["amount"]) for row in rows)


@pytest.mark.long
def test_a_query_is_adopted_grows_moves_to_another_source_and_leaves(tmp_path: Path) -> None:
    life = Life(tmp_path)
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "plain.py").write_text(PLAIN)
    runs = ("run", "orders.py", "--store", "store", "--available-now")
    adopts = ("adopt", "orders.py", "--query", "totals=checkpoint", "--store", "store")

    # A plain query in the middle of its life: windows are open, and files have come since.
    life.arrive("incoming", 6)
    life.plain("incoming", "checkpoint", "before")
    assert life.shown() == life.complete() != []
    life.arrive("incoming")

    # Adopted: looked at, done, run.
    life.file(reads="incoming")
    shown = life.type(*adopts, "--output", "json")
    assert shown["adopted"] is None
    assert not (tmp_path / "store").exists()
    assert life.type(*adopts, "--yes", "--output", "json")["adopted"] is not None
    life.type(*runs)
    assert life.shown() == life.complete()

    # A sink is added, of the orders themselves: the source moves out of the step.
    life.arrive("incoming")
    new = life.orders[-28:]
    life.file(reads="incoming", and_has=ADDED)
    life.type(*runs, "--allow-new")
    assert life.shown() == life.complete()
    assert life.large() == sorted((shop, amount) for shop, amount, _ in new if amount > 80) != []

    # The source is swapped; typed twice, as after a crash.
    life.arrive("elsewhere")
    life.file(reads="elsewhere", and_has=ADDED)
    life.type(*runs, "--swap", "orders")
    assert life.shown() == life.complete()
    life.arrive("elsewhere")
    life.type(*runs, "--swap", "orders")
    assert life.shown() == life.complete()
    new = life.orders[-28 * 3 :]
    assert life.large() == sorted((shop, amount) for shop, amount, _ in new if amount > 80)

    # It leaves: the step reads its source itself again, and a plain query goes on with both.
    life.file(reads="elsewhere")
    life.type(*runs, "--allow-dropped")
    out = life.type("eject", "orders", "--to", "plain", "--store", "store", "--output", "json")
    assert [(step["step"], step["ending"]) for step in out["steps"]] == [
        ("totals", "goes on exactly")
    ]
    assert life.shown() == life.complete()
    life.arrive("elsewhere", 3)
    life.plain("elsewhere", "plain/totals", "after")
    assert life.shown() == life.complete()
    assert list((tmp_path / "after").iterdir())

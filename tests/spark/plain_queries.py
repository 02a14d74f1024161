"""Plain queries of every stateful kind over files, run in the session of the tests.

Shared by the tests of a query's files and by the script that makes the golden directories.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cutwater.ids import BatchId

Rows = list[tuple[object, ...]]

FILES = 7
"""One file is one batch."""

AT = BatchId(3)
"""The batch the query is moved at: later ones exist, and so does a snapshot before."""

WAIT_S = 60.0
STATE = "spark.sql.streaming.stateStore"

OFTEN = {
    f"{STATE}.maintenanceInterval": "200ms",
    f"{STATE}.minDeltasForSnapshot": "2",
    # `StateStore.stop` holds a lock for which its own maintenance threads may wait. It gives up
    # after these seconds (300 by default), from Spark 4.1 on.
    f"{STATE}.maintenanceShutdownTimeout": "5",
    f"{STATE}.maintenanceForceShutdownTimeout": "5",
    "spark.sql.shuffle.partitions": "2",
}
"""Snapshots of RocksDB every other batch instead of every ten."""


# -- queries


@dataclass(frozen=True)
class Kind:
    """A kind of query, and how its state is read.

    Attributes:
        build: Makes the query from a reader that gives a new stream on every call.
        mode: Its output mode.
        keys: For updates: how many columns are the key that later rows replace.
        views: The options of each way to read its state.
        conf: What Spark must be told.
    """

    build: Callable[[Callable[[], DataFrame]], DataFrame]
    mode: str
    keys: int | None = None
    views: tuple[Mapping[str, str], ...] = ({},)
    conf: Mapping[str, str] = field(default_factory=dict)


def totals(read: Callable[[], DataFrame]) -> DataFrame:
    return read().groupBy("k").agg(F.sum("v").alias("total"))


def firsts(read: Callable[[], DataFrame]) -> DataFrame:
    return read().withColumn("w", F.expr("v % 17")).dropDuplicates(["w"]).select("k", "v", "w")


def pairs(read: Callable[[], DataFrame]) -> DataFrame:
    left = read().withWatermark("t", "90 seconds")
    right = read().selectExpr("k as k2", "v + 10 as v2", "t as t2")
    near = "k = k2 and v = v2 and t2 between t - interval 2 minutes and t + interval 2 minutes"
    return left.join(right.withWatermark("t2", "90 seconds"), F.expr(near), "leftOuter")


def chained(read: Callable[[], DataFrame]) -> DataFrame:
    inner = (
        read()
        .withWatermark("t", "30 seconds")
        .groupBy(F.window("t", "1 minute"), "k")
        .agg(F.sum("v").alias("total"))
    )
    outer = inner.groupBy(F.window("window", "3 minutes")).agg(F.sum("total").alias("total"))
    return outer.select("window.start", "total")


def processed(read: Callable[[], DataFrame]) -> DataFrame:
    # A class inside a function goes to Spark's workers by value.
    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(  # noqa: N802 - Spark's name
            self, key: tuple[int], rows: Iterator[Row], _: object
        ) -> Iterator[Row]:
            (total,) = self.total.get() or (0,)
            total += sum(row.v for row in rows)
            self.total.update((total,))
            yield Row(k=key[0], total=total)

        def close(self) -> None:
            pass

    schema = "k int, total long"
    return read().groupBy("k").transformWithState(Totals(), schema, "Update", "None")


def even(read: Callable[[], DataFrame]) -> DataFrame:
    return read().where("v % 2 = 0")


def _begun(provider: str, version: int, *, changelog: bool = False) -> Mapping[str, str]:
    package = "org.apache.spark.sql.execution.streaming.state"
    return {
        f"{STATE}.providerClass": f"{package}.{provider}StateStoreProvider",
        f"{STATE}.checkpointFormatVersion": str(version),
        f"{STATE}.rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
    }


BEGUN = {
    "hdfs": _begun("HDFSBacked", 1),
    "rocksdb-1": _begun("RocksDB", 1),
    "rocksdb-1-changelog": _begun("RocksDB", 1, changelog=True),
    "rocksdb-2": _begun("RocksDB", 2),
    "rocksdb-2-changelog": _begun("RocksDB", 2, changelog=True),
}
"""How a query's state may be kept, from its first batch on."""

SIDES = tuple({"joinSide": side} for side in ("left", "right"))

KINDS = {
    "aggregation": Kind(totals, "update", keys=1),
    "dropDuplicates": Kind(firsts, "append"),
    "join": Kind(pairs, "append", views=SIDES),
    "join-format-3": Kind(
        pairs, "append", views=SIDES, conf={"spark.sql.streaming.join.stateFormatVersion": "3"}
    ),
    "chained": Kind(chained, "append", views=({"operatorId": "0"}, {"operatorId": "1"})),
    "transformWithState": Kind(processed, "update", keys=1, views=({"stateVarName": "total"},)),
    "stateless": Kind(even, "append", views=()),
    # What plain queries have that were not begun in a session of ours.
    "hdfs-aggregation": Kind(totals, "update", keys=1, conf=BEGUN["hdfs"]),
    "hdfs-join": Kind(pairs, "append", views=SIDES, conf=BEGUN["hdfs"]),
    "rocksdb-1-dropDuplicates": Kind(firsts, "append", conf=BEGUN["rocksdb-1"]),
    "rocksdb-1-transformWithState": Kind(
        processed,
        "update",
        keys=1,
        views=({"stateVarName": "total"},),
        conf=BEGUN["rocksdb-1-changelog"],
    ),
}


# -- running them


def jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - Java has no types here
    return spark._jvm


def restart_maintenance(spark: SparkSession) -> None:
    """The next store that is loaded starts it again, with the interval of that moment."""
    jvm(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()


def write_checksums(spark: SparkSession, *, wanted: bool) -> None:
    local = jvm(spark).java.net.URI("file:///")
    hadoop = spark._jsc.hadoopConfiguration()
    jvm(spark).org.apache.hadoop.fs.FileSystem.get(local, hadoop).setWriteChecksum(wanted)


@contextmanager
def conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def write_inputs(directory: Path, numbers: Iterable[int] = range(FILES)) -> None:
    """Write files with ten rows each; times grow, one minute a file."""
    for number in numbers:
        rows = (
            {"k": row % 5, "v": number * 10 + row, "t": f"2024-01-01 00:{number:02}:{row * 5:02}"}
            for row in range(10)
        )
        file = directory / f"{number:03}.json"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        # Spark takes the oldest first, and its clock counts whole milliseconds.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


@dataclass(frozen=True)
class World:
    """One kind of query over the inputs."""

    spark: SparkSession
    kind: Kind
    inputs: Path

    def run(
        self, checkpoint: Path, seen: Callable[[int], object] = lambda _: None
    ) -> dict[int, Rows]:
        """Run over all that is left of the input; return the rows of every batch."""
        batches: dict[int, Rows] = {}

        def collect(frame: DataFrame, batch: int) -> None:
            seen(batch)
            batches[batch] = [tuple(row) for row in frame.collect()]

        with conf(self.spark, self.kind.conf):
            query = self.start(checkpoint, collect)
        query.awaitTermination()
        return batches

    def start(self, checkpoint: Path, collect: Callable[[DataFrame, int], None]) -> StreamingQuery:
        def read() -> DataFrame:
            stream = self.spark.readStream.schema("k int, v long, t timestamp")
            return stream.option("maxFilesPerTrigger", "1").json(str(self.inputs))

        writer = self.kind.build(read).writeStream.outputMode(self.kind.mode)
        writer = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(collect)
        return writer.trigger(availableNow=True).start()

    def state(self, checkpoint: Path, batch: BatchId) -> list[Rows]:
        """Read the state after a batch, row by row, in every way there is."""
        found = []
        for view in self.kind.views:
            reader = self.spark.read.format("statestore").option("batchId", str(batch))
            # The reader goes by the session's checkpoint format, and not by the directory's.
            with conf(self.spark, self.kind.conf):
                frame = reader.options(**view).load(str(checkpoint))
                found.append(sorted((tuple(row) for row in frame.collect()), key=str))
        return found

    def result(self, batches: Mapping[int, Rows]) -> Counter[tuple[object, ...]]:
        """Return what a table that takes every batch shows in the end."""
        rows = [row for _, found in sorted(batches.items()) for row in found]
        if self.kind.keys is not None:
            rows = list({row[: self.kind.keys]: row for row in rows}.values())
        return Counter(rows)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {WAIT_S} s"
        time.sleep(0.05)

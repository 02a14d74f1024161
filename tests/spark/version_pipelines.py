"""A pipeline and a plain query that one version of Spark begins and another one goes on with.

`scripts/golden_versions.py` runs them halfway on each version and keeps what they leave behind;
`test_other_versions.py` goes on with that. What they give is known by arithmetic.
"""

import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.spark.plain_queries import conf

from cutwater import Pipeline, sinks, sources
from cutwater.sinks.foreach_batch import CommitInfo

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "versions"
TOTAL, RATE, CYCLE = 1200, 400, 700
WINDOW_MS, DELAY_MS = 500, 250
AHEAD: Final = 100
NTH: Final = 10
KEYS: Final = 4

Rows = Counter[tuple[Any, ...]]


# -- a pipeline with every kind of state


def every_nth(numbers: DataFrame) -> DataFrame:
    # A class inside a function goes to Spark's workers by value.
    class EveryNth(StatefulProcessor):
        """Counts the rows of a key and gives every tenth."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._seen = handle.getValueState("seen", "count long")

        def handleInputRows(  # noqa: N802 - Spark's name
            self,
            key: tuple[int],
            rows: Iterator[pd.DataFrame],
            _: object,
        ) -> Iterator[pd.DataFrame]:
            state = self._seen.get()
            seen = int(state[0]) if state is not None else 0
            values = sorted(int(value) for frame in rows for value in frame["value"])
            given = [v for at, v in enumerate(values, seen + 1) if at % NTH == 0]
            self._seen.update((seen + len(values),))
            yield pd.DataFrame({"key": [key[0]] * len(given), "value": given})

        def close(self) -> None:
            pass

    grouped = numbers.groupBy("key")
    return grouped.transformWithStateInPandas(EveryNth(), "key long, value long", "append", "none")


def _of_event_time(numbers: DataFrame) -> DataFrame:
    return numbers.withWatermark("at", f"{DELAY_MS} milliseconds")


def _sums(numbers: DataFrame) -> DataFrame:
    windows = _of_event_time(numbers).groupBy(F.window("at", f"{WINDOW_MS} milliseconds"), "key")
    sums = windows.agg(F.sum("value").alias("sum"), F.count("*").alias("n"), F.max("value"))
    return sums.select(F.unix_millis("window.start").alias("start"), "key", "sum", "n")


def _firsts(numbers: DataFrame) -> DataFrame:
    return numbers.withColumn("w", F.col("value") % CYCLE).dropDuplicates(["w"]).select("value")


def _pairs(numbers: DataFrame) -> DataFrame:
    left = _of_event_time(numbers.select("value", "at"))
    right = numbers.selectExpr(f"value + {AHEAD} as other", "at as at2")
    near = "value = other and at between at2 and at2 + interval 2 seconds"
    joined = left.join(right.withWatermark("at2", f"{DELAY_MS} milliseconds"), F.expr(near))
    return joined.select("value", F.col("other").alias("same"))


def _all_of(numbers: DataFrame) -> DataFrame:
    return numbers.select("value")


_STEPS: Final = {
    "totals": _sums,
    "unique": _firsts,
    "pairs": _pairs,
    "nth": every_nth,
    "all_of": _all_of,
}
STEPS: Final = ("totals", "unique", "pairs", "nth")


def create(directory: Path, *names: str) -> Pipeline:
    """Return the pipeline, or some of its steps.

    Its sinks write rows to files, one file for each commit.
    """
    made = Pipeline("versions")

    def keep(frame: DataFrame, told: CommitInfo) -> None:
        rows = [list(row) for row in frame.collect()]
        place = directory / "rows" / told.sink
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{told.slot}.json").write_text(json.dumps(rows), encoding="utf-8")

    @made.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=TOTAL, rate=RATE, batch_max=100)
        return rows.withColumn("key", F.col("value") % KEYS)

    for name in names or STEPS:
        made.step(_STEPS[name], name=name, inputs=["numbers"], partitions=2)
        target = sinks.foreach_batch(keep, staging=str(directory / "staging"))
        made.sink(f"{name}_rows", target, of=name)
    return made


def given(directory: Path) -> dict[str, Rows]:
    """Return all rows that the sinks have been given."""
    found: dict[str, Rows] = {}
    for file in sorted((directory / "rows").glob("*/*.json")):
        rows = json.loads(file.read_text(encoding="utf-8"))
        found.setdefault(file.parent.name, Counter()).update(tuple(row) for row in rows)
    return found


def expected() -> dict[str, Rows]:
    """Return what the sinks must have been given in the end, each row once."""
    times = {number: number * 1000 // RATE for number in range(TOTAL)}
    sums: dict[tuple[int, int], list[int]] = {}
    for number, at in times.items():
        sums.setdefault((at // WINDOW_MS * WINDOW_MS, number % KEYS), []).append(number)
    until = times[TOTAL - 1] - DELAY_MS
    start = 1_767_225_600_000
    return {
        "totals_rows": Counter(
            (start + begin, key, sum(found), len(found))
            for (begin, key), found in sums.items()
            if begin + WINDOW_MS <= until
        ),
        "unique_rows": Counter((number,) for number in range(CYCLE)),
        "pairs_rows": Counter((number, number) for number in range(AHEAD, TOTAL)),
        "nth_rows": Counter(
            (key, key + KEYS * at)
            for key in range(KEYS)
            for at in range(NTH - 1, TOTAL // KEYS, NTH)
        ),
    }


# -- a plain query over files


FILES, BEFORE = 6, 3
PLAIN: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
}
"""Spark's defaults, but for the number of partitions."""

ADOPTING: Final = """
from pyspark.sql import functions as F
from cutwater import Pipeline, sinks


def totals(lines):
    return lines.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def create(directory: str) -> Pipeline:
    made = Pipeline("adopting")

    @made.source
    def lines(spark):
        stream = spark.readStream.schema("k int, v long").option("maxFilesPerTrigger", "1")
        return stream.json(f"{directory}/incoming")

    made.step(totals, output_mode="update")
    made.sink("table", sinks.delta(f"{directory}/table", write="upsert", keys=["k"]), of="totals")
    return made
"""


def totals(lines: DataFrame) -> DataFrame:
    """Return what the adopted step computes, for a plain query."""
    return lines.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def plain(spark: SparkSession, directory: Path, checkpoint: Path) -> dict[int, tuple[int, int]]:
    """Run the plain query over all that is left; return what it gives for each key at last."""
    found: dict[int, tuple[int, int]] = {}

    def collect(frame: DataFrame, _: int) -> None:
        found.update({row.k: (row.total, row.n) for row in frame.collect()})

    stream = spark.readStream.schema("k int, v long").option("maxFilesPerTrigger", "1")
    writer = totals(stream.json(str(directory / "incoming"))).writeStream.foreachBatch(collect)
    writer = writer.outputMode("update").option("checkpointLocation", str(checkpoint))
    with conf(spark, PLAIN):
        query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def write_files(directory: Path, numbers: range) -> None:
    """Write one file for each number."""
    incoming = directory / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        lines = (json.dumps({"k": row % 3, "v": number * 10 + row}) for row in range(10))
        hidden = incoming / f".{number}"
        hidden.write_text("\n".join(lines), encoding="utf-8")
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(incoming / f"{number}.json")


def sums(files: int) -> dict[int, tuple[int, int]]:
    """Return total and count of every key after so many files."""
    found: dict[int, tuple[int, int]] = {}
    for number in range(files):
        for row in range(10):
            total, count = found.get(row % 3, (0, 0))
            found[row % 3] = (total + number * 10 + row, count + 1)
    return found


# -- golden files


def pack(directory: Path, name: str) -> None:
    """Keep a directory under a name, without its owner, time and place."""
    GOLDEN.mkdir(exist_ok=True)
    with tarfile.open(GOLDEN / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(directory, ".", filter=_without_owner)


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def unpack(name: str, into: Path) -> None:
    """Unpack what is kept under a name."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)


def move_files(query: Path, directory: Path | str) -> None:
    """Let a query find the files that it has read in another directory."""
    for file in (query / "sources").rglob("*"):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            moved = re.sub(r"file://[^\"]*/incoming/", f"file://{directory}/incoming/", text)
            file.write_text(moved, encoding="utf-8")

"""The public contract of a sink, over every sink of ours that keeps rows.

`shown` reads with pyarrow and this file's own reading of logs and directories; the sinks' code
takes no part in it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from cutwater import sinks
from cutwater.sinks.base import Sink
from cutwater.testing import SinkContract
from cutwater.testing.fixtures import cutwater_spark

__all__ = ["cutwater_spark"]


def in_sight(directory: Path, suffix: str) -> list[Path]:
    """The files that a reader finds who only looks: nothing below a name that is hidden."""
    found = directory.rglob(f"*{suffix}")
    hidden = (".", "_")
    return [
        one
        for one in found
        if not any(part.startswith(hidden) for part in one.relative_to(directory).parts)
    ]


class TestDeltaAppend(SinkContract):
    def target(self, directory: Path) -> Sink:
        return sinks.delta(str(directory / "table"))

    def shown(self, directory: Path) -> list[int]:
        table = directory / "table"
        files: dict[str, None] = {}
        for version in sorted((table / "_delta_log").glob("*.json")):
            for line in version.read_text().splitlines():
                action = json.loads(line)
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
                if "add" in action:
                    files[action["add"]["path"]] = None
        return sorted(one for file in files for one in ids_in(table / file))


class TestParquetFiles(SinkContract):
    def target(self, directory: Path) -> Sink:
        return sinks.files(str(directory / "out [of] ü"), partition_by=["kind"])

    def frame(self, spark: SparkSession, ids: Sequence[int]) -> DataFrame:
        rows = [(one, None if one % 3 == 0 else f"a/b {one % 3}") for one in ids]
        return spark.createDataFrame(rows, "id long, kind string")

    def shown(self, directory: Path) -> list[int]:
        found = in_sight(directory / "out [of] ü", ".parquet")
        return sorted(one for file in found for one in ids_in(file))


class TestJsonFiles(SinkContract):
    def target(self, directory: Path) -> Sink:
        options = {"compression": "gzip"}
        return sinks.files(str(directory / "out"), "json", options=options)

    def shown(self, directory: Path) -> list[int]:
        found = in_sight(directory / "out", ".json.gz")
        return sorted(
            one for file in found for one in pyarrow.json.read_json(file)["id"].to_pylist()
        )


class TestCsvFilesOverwritten(SinkContract):
    overwrites = True

    def target(self, directory: Path) -> Sink:
        return sinks.files(str(directory / "out"), "csv", write="overwrite")

    def shown(self, directory: Path) -> list[int]:
        found = in_sight(directory / "out", ".csv")
        return sorted(one for file in found for one in pyarrow.csv.read_csv(file)["id"].to_pylist())


def ids_in(file: Path) -> list[int]:
    return list(pq.ParquetFile(file).read(columns=["id"])["id"].to_pylist())

"""Rows for a Delta table without Spark, and a reader of Delta tables that is not deltalake."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

TYPES = {"k": StringType(), "n": LongType(), "v": LongType(), "x": StringType()}
ARROW = {"k": pa.string(), "n": pa.int64(), "v": pa.int64(), "x": pa.string()}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ArrowRows:
    """The rows of one batch, written by pyarrow as Spark would; fills `Rows`."""

    rows: Sequence[Row]
    columns: tuple[str, ...]

    @property
    def schema(self) -> StructType:
        return StructType([StructField(name, TYPES[name]) for name in self.columns])

    @property
    def frame(self) -> DataFrame:
        raise NotImplementedError

    def gathered(self) -> "ArrowRows":
        return self

    def count(self) -> int:
        raise NotImplementedError

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        del options
        base = Path(directory.removeprefix("file://"))
        base.mkdir(parents=True)
        for number, row in enumerate(self.rows):
            place = base.joinpath(*(_part(name, row[name]) for name in partition_by))
            place.mkdir(parents=True, exist_ok=True)
            kept = [name for name in self.columns if name not in partition_by]
            file = place / f"part-{number % 2:05d}.parquet"
            old = pq.ParquetFile(file).read().to_pylist() if file.exists() else []
            pq.write_table(arrow([*old, {name: row[name] for name in kept}], kept), file)
        return len(self.rows)


def arrow(rows: Iterable[Row], columns: Sequence[str]) -> pa.Table:
    """Return rows as an Arrow table."""
    schema = pa.schema([(name, ARROW[name]) for name in columns])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def _part(name: str, value: object) -> str:
    text = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(str(value), safe="")
    return f"{name}={text}"


def actions_of(table: Path) -> Iterator[list[dict[str, Any]]]:
    """Give the actions of every version, oldest first; the log must have no holes."""
    files = sorted((table / "_delta_log").glob("*.json"))
    assert [int(file.stem) for file in files] == list(range(len(files)))
    for file in files:
        yield [json.loads(line) for line in file.read_text().splitlines()]


def read_with_duckdb(table: Path) -> list[tuple[Any, ...]]:
    """Replay the log and read the files it names; rows of (k, n, v, x), sorted."""
    files: dict[str, dict[str, str | None]] = {}
    for actions in actions_of(table):
        # Within one version the order of actions means nothing.
        for action in actions:
            if "remove" in action:
                del files[action["remove"]["path"]]
        for action in actions:
            if "add" in action:
                assert action["add"]["path"] not in files
                files[action["add"]["path"]] = action["add"]["partitionValues"]
    rows: list[tuple[Any, ...]] = []
    for path, values in files.items():
        found = duckdb.read_parquet(str(table / unquote(path)), hive_partitioning=False)
        for values_of_row in found.fetchall():
            row = {**values, **dict(zip(found.columns, values_of_row, strict=True))}
            number = row.get("n")
            row["n"] = None if number is None else int(number)
            rows.append(tuple(row.get(name) for name in TYPES))
    return sorted(rows, key=repr)


def changes_of(table: Path) -> list[tuple[int, int]]:
    """Say for every version how many files it added and how many it removed."""
    return [
        (sum("add" in action for action in actions), sum("remove" in action for action in actions))
        for actions in actions_of(table)
    ]

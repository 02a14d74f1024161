"""The rows of a step as Kafka records: how columns become records, and staged files records again.

Staged rows have the columns of Spark's own Kafka sink (`COLUMNS`), so that a commit needs nothing
but the files. The records of a commit have one order: that of the batches, and in a batch that of
the files and their rows. A commit that is resumed depends on it, and so does the order per key.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
ANY_PARTITION: Final = -1

_RUN_ROWS: Final = 1_000
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_BYTES: Final = frozenset({"string", "binary"})
_ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": frozenset({_HEADERS}),
    "topic": frozenset({"string"}),
    "partition": frozenset({"int"}),
}
_TOPIC_NAME: Final = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark's own defaults leave out columns that are null, and cut timestamps to milliseconds."""


Message = dict[str, Any]
"""A record without its topic: key, value, and perhaps headers and partition, as a producer takes
them."""


class Run(NamedTuple):
    """Records of one topic that follow one another.

    Attributes:
        is_plain: No record has headers, and the client chooses their partitions.
    """

    topic: str
    messages: list[Message]
    is_plain: bool


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How rows become records.

    Attributes:
        topic: The topic of all records; None if the column `topic` names it.
        key: With `as_json`: the columns that are the key; no key without any.
        as_json: Whether a row is written as a JSON object, whatever its columns are.
        order_by: The columns that order the records of one key in a batch; without any, Spark's
            order of rows.
    """

    topic: str | None
    key: tuple[str, ...] = ()
    as_json: bool = False
    order_by: tuple[str, ...] = ()

    def problem(self, rows: "StructType") -> str | None:
        """Return why such rows cannot become records; None if they can."""
        kinds = {field.name: field.dataType.simpleString() for field in rows.fields}
        if self.as_json:
            missing = [name for name in self.key if name not in kinds]
            return (
                f"there is no column {missing[0]} to be the key" if missing else _find_unheld(rows)
            )
        if "value" not in kinds:
            return "there is no column value; name it so, or write value='json'"
        if self.topic is None and "topic" not in kinds:
            return "there is no column topic; add it, or give topic="
        for name, kind in kinds.items():
            allowed = _ALLOWED.get(name)
            if allowed is None and name in self.order_by:
                continue
            if allowed is None:
                known = ", ".join(COLUMNS)
                return f"column {name} is none of {known}; leave it out, or write value='json'"
            if kind.partition(" collate")[0] not in allowed:
                return f"column {name} is {kind} and must be {' or '.join(sorted(allowed))}"
        return None

    def select(
        self, frame: "DataFrame", *, partitions: int | None = None, needs_key: bool = False
    ) -> "DataFrame":
        """Return rows with the columns `COLUMNS`, as they are staged.

        A row that the topic can never take ends the batch: one without a key, if it needs one, or
        one for a partition that it does not have, if their number is known.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415 - only staging needs it

        frame = self._order(frame)
        there = frozenset() if self.as_json else frozenset(frame.columns)
        if self.as_json:
            key = self._json_key(frame)
            value = F.to_json(F.struct("*"), _JSON).cast("binary")
        else:
            key = F.col("key").cast("binary") if "key" in there else F.lit(None).cast("binary")
            value = F.col("value").cast("binary")
        headers = F.col("headers") if "headers" in there else F.lit(None)
        partition = F.col("partition") if "partition" in there else F.lit(ANY_PARTITION)
        topic = F.lit(self.topic)
        # What Kafka can never take must not become part of a decided checkpoint.
        if self.topic is None:
            wrong = F.coalesce(~F.col("topic").rlike(_TOPIC_NAME), F.lit(True))
            topic = _refuse(wrong, F.col("topic"), "the column topic has no name of a topic")
        if "headers" in there:
            nameless = F.exists(
                F.col("headers"), lambda header: header.isNull() | header["key"].isNull()
            )
            headers = _refuse(nameless, headers, "the column headers has a header without a key")
        if "partition" in there:
            wrong = partition < ANY_PARTITION
            reason = "the column partition has no number of one"
            if partitions is not None:
                wrong |= partition >= partitions
                reason += f"; topic {self.topic} has {partitions}"
            partition = _refuse(wrong, partition, reason)
        if needs_key:
            reason = f"topic {self.topic} is compacted, and a row has no key"
            key = _refuse(key.isNull(), key, reason)
        return frame.select(
            key.alias("key"),
            value.alias("value"),
            headers.cast(_HEADERS).alias("headers"),
            topic.cast("string").alias("topic"),
            F.coalesce(partition, F.lit(ANY_PARTITION)).cast("int").alias("partition"),
        )

    def _order(self, frame: "DataFrame") -> "DataFrame":
        """Bring the rows of each key together, in their order."""
        if not self.order_by:
            return frame
        keys = self.key if self.as_json else tuple({"key"} & set(frame.columns))
        together = frame.coalesce(1)
        if keys:
            together = frame.repartition(*(frame[f"`{name}`"] for name in keys))
        return together.sortWithinPartitions(*(frame[f"`{name}`"] for name in self.order_by))

    def _json_key(self, frame: "DataFrame") -> "Column":
        from pyspark.sql import functions as F  # noqa: PLC0415 - only staging needs it

        columns = [frame[f"`{name}`"] for name in self.key]
        if not columns:
            return F.lit(None).cast("binary")
        if len(columns) == 1:
            kind = frame.schema[self.key[0]].dataType.simpleString()
            return columns[0] if kind == "binary" else columns[0].cast("string").cast("binary")
        return F.to_json(F.struct(*columns), _JSON).cast("binary")


def _refuse(wrong: "Column", column: "Column", reason: str) -> "Column":
    """Return a column that ends the batch where a row is wrong."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - only staging needs it

    return F.when(wrong, F.raise_error(F.lit(reason))).otherwise(column)


def _find_unheld(rows: "StructType") -> str | None:
    from cutwater.sinks.columns import parts  # noqa: PLC0415 - needs Spark's types

    for field in rows.fields:
        for kind in parts(field.dataType):
            if kind.typeName().startswith(("geography", "geometry")):
                return f"column {field.name} is {kind.simpleString()}, which JSON cannot hold"
    return None


def read_runs(files: Sequence[Path], skip: int = 0) -> Iterator[Run]:
    """Yield the records of staged files in their order, without the first ones."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - a plan needs no files

    for file in files:
        with pq.ParquetFile(file) as opened:
            if skip >= opened.metadata.num_rows:
                skip -= opened.metadata.num_rows
                continue
            for batch in opened.iter_batches(_RUN_ROWS, columns=list(COLUMNS)):
                rest = batch.slice(skip)
                skip -= len(batch) - len(rest)
                if len(rest):
                    yield from _runs(rest)


def _runs(batch: "RecordBatch") -> Iterator[Run]:
    import pyarrow.compute as pc  # noqa: PLC0415 - a plan needs no files

    topics, partitions = batch.column("topic"), batch.column("partition")
    are_alike = (
        batch.column("headers").null_count == len(batch)
        and pc.min_max(partitions).as_py() == {"min": ANY_PARTITION, "max": ANY_PARTITION}
        and len(topics.unique()) == 1
    )
    if are_alike:
        # The usual case, for which no row is looked at.
        yield Run(topics[0].as_py(), batch.select(["key", "value"]).to_pylist(), is_plain=True)
        return
    for topic, rows in groupby(batch.to_pylist(), key=lambda row: row["topic"]):
        yield Run(topic, [_message(row) for row in rows], is_plain=False)


def _message(row: Mapping[str, Any]) -> Message:
    headers = [(str(header["key"]), header["value"]) for header in row["headers"] or ()]
    return {
        "key": row["key"],
        "value": row["value"],
        "headers": headers,
        "partition": row["partition"],
    }

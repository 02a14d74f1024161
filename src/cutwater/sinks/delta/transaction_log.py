"""A Delta table's log as our commits need it: which slot made which version, and durability.

Every commit of a sink names its slot in the log's own `txn` action, in the one file that is the
commit: a version and its slot appear together or not at all. Slots only grow, so a search from
the newest version down may stop at the first slot that is low enough.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cutwater.ids import BatchId, Generation, PipelineId, SinkId, Slot
from cutwater.sinks.delta.foreign_types import Calendar, Calendars
from cutwater.sinks.delta.storage import LOG, FileFacts, TableStorage

_TEXT_MAX: Final = 32
_UNSYNCED: Final = 100
_LOOKS_AT_ONCE: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OwnCommit:
    """A version that a sink has made, and the slot that it committed."""

    version: int
    slot: Slot


class DeltaLog:
    """The log of one table. Lets every `OSError` through, also for a version that is gone."""

    def __init__(self, storage: TableStorage, pipeline: PipelineId, sink: SinkId) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self._sink = sink
        self._app_id = f"{pipeline}/{sink}"
        self._synced: int | None = None

    @property
    def exists(self) -> bool:
        return self._storage.has_log()

    def own_commits(self, newest: int) -> Iterator[OwnCommit]:
        """Yield this sink's commits, newest first, as far as the log reaches back."""
        for version in range(newest, -1, -1):
            try:
                text = self._storage.read(_file(version)).decode()
            except FileNotFoundError:
                return
            for line in text.splitlines():
                if self._app_id not in line:
                    continue
                action = json.loads(line).get("txn")
                if action is not None and action["appId"] == self._app_id:
                    yield OwnCommit(version, Slot(action["version"]))

    def own_entry(self, version: int) -> tuple[Slot | None, tuple[Generation, BatchId] | None]:
        """Return the slot that a version of this sink committed, and the batch that it shows."""
        slot = batch = None
        for line in self._storage.read(_file(version)).decode().splitlines():
            if self._pipeline not in line:
                continue
            action = json.loads(line)
            if action.get("txn", {}).get("appId") == self._app_id:
                slot = Slot(action["txn"]["version"])
            info = action.get("commitInfo", {})
            made_by = (info.get("cutwater.pipeline"), info.get("cutwater.sink"))
            if made_by == (self._pipeline, self._sink) and "cutwater.batch" in info:
                numbers = int(info["cutwater.generation"]), int(info["cutwater.batch"])
                batch = Generation(numbers[0]), BatchId(numbers[1])
        return slot, batch

    def foreign_actions(self, version: int) -> list[Mapping[str, Any]]:
        """Return what a version did; nothing if this sink made it."""
        lines = self._storage.read(_file(version)).decode().splitlines()
        actions = [json.loads(line) for line in lines if line.strip()]
        for action in actions:
            info = action.get("commitInfo", {})
            made_by = (info.get("cutwater.pipeline"), info.get("cutwater.sink"))
            if made_by == (self._pipeline, self._sink):
                return []
        return actions

    def facts(self, version: int) -> FileFacts | None:
        """Look at the file of a version; None if the log has none."""
        return self._storage.facts(_file(version))

    def find_missing(self, version: int) -> list[str]:
        """Return the files that a version added and that are not there, or have another size.

        Nothing is returned for a version so old that the log no longer has it.
        """
        try:
            lines = self._storage.read(_file(version)).decode().splitlines()
        except FileNotFoundError:
            return []
        actions = [json.loads(line) for line in lines if '"add"' in line]
        added = [action["add"] for action in actions if "add" in action]
        sizes = {unquote(str(file["path"])): int(file["size"]) for file in added}
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
            found = pool.map(self._storage.facts, sizes)
            return [
                name
                for name, facts in zip(sizes, found, strict=True)
                if facts is None or facts.size_bytes != sizes[name]
            ]

    @property
    def is_whole(self) -> bool:
        """Whether the log reaches back to the table's beginning."""
        return self._storage.facts(_file(0)) is not None

    def sync(self, version: int) -> None:
        """Sync a version, the versions before it, and their checkpoints.

        deltalake leaves that to the operating system; without an older version that got lost, this
        version could not be read. What another program wrote long ago is on disk by now.
        """
        first = version - _UNSYNCED if self._synced is None else self._synced + 1
        names = [f"{LOG}/_last_checkpoint"]
        for number in range(max(first, 0), version + 1):
            names += [_file(number), f"{LOG}/{number:020d}.checkpoint.parquet"]
        self._storage.sync(names)
        self._synced = version


def _file(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def statistics(footer: pq.FileMetaData, schema: StructType) -> str:
    """Return Delta's statistics of a Parquet file, from its footer alone.

    Nulls are counted for plain columns. Min and max values are given where they are exact in JSON
    and compared alike by all readers: whole numbers, dates, timestamps, short texts. They are not
    given for timestamps in another unit than Delta's, nor for dates and timestamps of a calendar
    that only Spark knows.
    """
    types = {field.name: field.dataType for field in schema}
    is_hybrid = Calendars.of(footer.metadata).usual is Calendar.HYBRID
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        # A column of a struct has its struct's name in front.
        name = footer.row_group(0).column(index).path_in_schema
        parts = [group.column(index).statistics for group in groups]
        if name not in types or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        parts = [
            part
            for part, group in zip(parts, groups, strict=True)
            if part.null_count < group.num_rows
        ]
        if not parts or not all(part.has_min_max for part in parts):
            continue
        if not _is_as_in_log(footer.schema.column(index), types[name], is_hybrid=is_hybrid):
            continue
        low = _in_json(min(part.min_raw for part in parts), types[name])
        high = _in_json(max(part.max_raw for part in parts), types[name])
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        }
    )


def _is_as_in_log(column: "pq.ColumnSchema", kind: DataType, *, is_hybrid: bool) -> bool:
    """Return whether the stored numbers of a column mean the same to all readers as in the log."""
    if isinstance(kind, DateType | TimestampType) and is_hybrid:
        return False
    if isinstance(kind, TimestampType | TimestampNTZType):
        is_integer = column.physical_type == "INT64"
        return is_integer and '"timeUnit":"microseconds"' in column.logical_type.to_json()
    return True


def _in_json(raw: Any, kind: DataType) -> int | str | None:  # noqa: ANN401 - Parquet's own value
    """Return a Parquet value as Delta writes it; None where that would not be exact."""
    try:
        match kind:
            case ByteType() | ShortType() | IntegerType() | LongType():
                return int(raw)
            case DateType():
                return (_EPOCH + timedelta(days=raw)).date().isoformat()
            case TimestampType():
                at = (_EPOCH + timedelta(microseconds=raw)).replace(tzinfo=None)
                return f"{at.isoformat(timespec='microseconds')}Z"
            case TimestampNTZType():
                at = (_EPOCH + timedelta(microseconds=raw)).replace(tzinfo=None)
                return at.isoformat(timespec="microseconds")
            case StringType():
                text = bytes(raw).decode()
                return text if len(text) <= _TEXT_MAX else None
            case _:
                return None
    except (OverflowError, UnicodeDecodeError):
        return None

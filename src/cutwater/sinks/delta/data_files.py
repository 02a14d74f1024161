"""The Parquet files of a Delta table: existing files, new files, and copies with fewer rows.

A copy has the table's columns in the table's types (`foreign_types`), whatever types its originals
have. It is read and written in parts, so that only one part is in memory. Its name is derived from
the slot, the columns and the originals: a commit that is repeated, after a conflict or a crash,
finds the copies it has already made.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from cutwater.sinks.delta.foreign_types import Calendars, TableColumns, kept_metadata
from cutwater.sinks.delta.merge_keys import Bounds, Keys, Mask
from cutwater.sinks.delta.storage import TableStorage
from cutwater.sinks.delta.transaction_log import statistics
from cutwater.store.backends.files import make_lasting

_KEPT_IN_LOG: Final = "/!$&'()+,-.:;=@_~"
"""The characters, besides letters and digits, that deltalake does not encode in a file name."""

_ROWS_AT_ONCE: Final = 64 * 1024
_GROUP_BYTES: Final = 32 << 20
"""A row group of a copy is written when it has about this many bytes in memory."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of a table.

    Attributes:
        logged: Its name in the table's log, which is encoded as in an address.
        values: The values of the partition columns, as text.
        bounds: The bounds of its key columns in the table's log.
    """

    storage: TableStorage
    name: str
    logged: str
    size_bytes: int
    values: Mapping[str, str | None]
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    def open(self) -> pq.ParquetFile:
        return self.storage.parquet(self.name)

    def addition(self, schema: StructType) -> AddAction:
        facts = self.storage.facts(self.name)
        if facts is None:
            message = f"{self.name} is gone"
            raise FileNotFoundError(message)
        with self.open() as opened:
            said = statistics(opened.metadata, schema)
        size, at = facts.size_bytes, facts.modified_ms
        return AddAction(self.logged, size, dict(self.values), at, True, said)

    @property
    def can_be_removed(self) -> bool:
        """Whether deltalake would encode its name as the log does, and so really remove it.

        deltalake encodes names in its own way, and a reader compares the encoded names: a file
        that another writer has encoded differently would stay, besides the copy that replaces it.
        """
        return quote(self.name, safe=_KEPT_IN_LOG) == self.logged

    def removal(self) -> RemoveAction:
        now_ms = int(time.time() * 1000)
        return RemoveAction(self.name, True, now_ms, self.size_bytes, dict(self.values))


@dataclass(frozen=True, slots=True)
class Part:
    """A file, and which of its rows are unwanted; None if all rows are wanted."""

    file: DataFile
    unwanted: Mask | None = None

    @property
    def size_bytes(self) -> int:
        """The approximate size of a copy."""
        if self.unwanted is None:
            return self.file.size_bytes
        return int(self.file.size_bytes * (1 - self.unwanted.mean()))


def files_of(storage: TableStorage, table: DeltaTable, keys: Keys | None) -> list[DataFile]:
    """Return the files of a table's version, with what is known of their keys."""
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    divided_by = table.metadata().partition_columns
    names = [] if keys is None else [name for name in keys.types if keys.is_bounded(name)]
    return [
        DataFile(
            storage,
            unquote(str(action["path"])),
            str(action["path"]),
            int(action["size_bytes"]),
            {column: _text(action.get(f"partition.{column}")) for column in divided_by},
            {name: _bounds(action, name, divided_by) for name in names},
        )
        for action in actions
    ]


def _bounds(action: Mapping[str, Any], name: str, divided_by: Sequence[str]) -> Bounds:
    if name in divided_by:
        value = action.get(f"partition.{name}")
        return Bounds(value, value, value is None)
    nulls = action.get(f"null_count.{name}")
    return Bounds(action.get(f"min.{name}"), action.get(f"max.{name}"), nulls != 0)


def _text(value: object) -> str | None:
    """Return the value of a partition as the log has it."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
        case _:
            return str(value)


class Copies:
    """Makes copies for the commit of one slot."""

    def __init__(self, storage: TableStorage, spool: Path, key: str, columns: TableColumns) -> None:
        """Make them in `spool`, a local directory of this process alone, for the commit `key`."""
        self._storage = storage
        self._spool = spool
        self._key = key
        self._columns = columns

    def copy(self, parts: Sequence[Part]) -> DataFile:
        """Copy the wanted rows of files into one; they have the same partition and calendars.

        The copy is published and synced. SinkError if a file has a column that cannot be copied
        without changing a value.
        """
        values = parts[0].file.values
        digest = hashlib.sha256(f"{self._key}\n{self._columns.schema.json()}".encode())
        for part in parts:
            digest.update(f"\n{part.file.name}".encode())
        name = f"part-{digest.hexdigest()}.parquet"
        facts = self._storage.facts(name)
        if facts is None:
            make_lasting(self._spool)
            local = self._spool / uuid.uuid4().hex
            try:
                _write(local, parts, self._columns)
                self._storage.publish(local, name)
            finally:
                local.unlink(missing_ok=True)
            facts = self._storage.facts(name)
        assert facts is not None
        return DataFile(self._storage, name, name, facts.size_bytes, values)


def calendars_of(file: DataFile) -> Calendars:
    """Return the calendars of a file, on which the files of one copy must agree."""
    with file.open() as opened:
        return Calendars.of(opened.metadata.metadata)


def _write(local: Path, parts: Sequence[Part], columns: TableColumns) -> None:
    with pq.ParquetWriter(
        local, columns.arrow, store_schema=False, store_decimal_as_integer=True
    ) as writer:
        waiting: list[pa.RecordBatch] = []
        for part in parts:
            for batch in _read_wanted(part, columns):
                waiting.append(batch)
                if sum(batch.nbytes for batch in waiting) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
        with parts[0].file.open() as opened:
            writer.add_key_value_metadata(kept_metadata(opened.metadata.metadata))
    with local.open("rb") as file:
        os.fsync(file.fileno())


def _read_wanted(part: Part, columns: TableColumns) -> Iterator[pa.RecordBatch]:
    start = 0
    with part.file.open() as opened:
        for batch in columns.batches(opened, part.file.name, _ROWS_AT_ONCE):
            end = start + batch.num_rows
            if part.unwanted is None:
                yield batch
            else:
                yield batch.filter(pa.array(~part.unwanted[start:end]))
            start = end

"""Which files make up the state of a query: operators, their metadata, and a store's versions.

    state/<operator>/_metadata/metadata          what the operator is
    state/<operator>/_metadata/v2/<b>            the same, with absolute paths of its schemas
    state/<operator>/_stateSchema/<store>/…      schemas
    state/<operator>/<partition>[/<store>]/      one state store, at version N+1 after batch N

The first batch of a query fixes its provider and format. The default provider ("HDFS-backed"):

    <version>.delta       what one batch changed
    <version>.snapshot    the whole state at a version, written in the background
    _metadata/schema

RocksDB, in both of Spark's checkpoint formats:

    format 1    <version>.zip, <version>.changelog
    format 2    <version>_<id>.zip, <version>_<id>.changelog
    both        SSTs/, logs/                shared by snapshots; each names the files it needs
                _metadata/schema

A `.zip` is a snapshot. Without changelogs there is one for every version; with changelogs, Spark
writes one occasionally, in the background. In all of these a version consists of a snapshot up to
it, usually the newest, and every delta or changelog after that snapshot, or from the first one if
there is no snapshot.

In format 2 a changelog contains its lineage, so files of repeated tasks and of abandoned timelines
are recognized by their ids and never used. The default provider and format 1 have only numbers: a
file of an abandoned batch would be read as if it belonged to the state. There a directory must
always be filled from scratch, with exactly these files.
"""

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId
from cutwater.spark.checkpoint_dir.listing import directories, entries, files_below
from cutwater.spark.checkpoint_dir.logs import StateVersion, lineage_of
from cutwater.store.backends.directories import exists, is_name

STATE: Final = "state"
METADATA_V2: Final = re.compile(r"_metadata/v2/(\d+)")
DEFAULT_STORE: Final = "default"
"""The name of the only store of an operator that has one; it has no directory of its own."""

_PARTS_OF_A_STORE: Final = frozenset({"SSTs", "logs", "_metadata"})

ROCKSDB_KINDS: Final = ("changelog", "zip")
"""The suffixes that the file of a RocksDB version may have."""


class Provider(Enum):
    """Which class of Spark keeps a query's state."""

    HDFS = "HDFSBackedStateStoreProvider"
    ROCKSDB = "RocksDBStateStoreProvider"

    @property
    def store(self) -> str:
        """What the option `state` of a step calls it."""
        return "memory" if self is Provider.HDFS else "rocksdb"

    @property
    def class_name(self) -> str:
        return f"org.apache.spark.sql.execution.streaming.state.{self.value}"

    @property
    def newest_format(self) -> int:
        """The newest checkpoint format in which it writes."""
        return 1 if self is Provider.HDFS else 2

    @classmethod
    def of(cls, class_name: str) -> "Provider":
        """Return the provider with this class."""
        for provider in cls:
            if class_name.rpartition(".")[2] == provider.value:
                return provider
        known = " and ".join(provider.value for provider in cls)
        raise RecoveryError(f"its state is kept by {class_name}; only {known} are known.")


def provider_called(store: str | None) -> Provider:
    """Return the provider for the option `state` of a step."""
    return Provider.HDFS if store == "memory" else Provider.ROCKSDB


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator of a query.

    Attributes:
        id: Its number in the plan.
        name: What Spark calls it, such as `stateStoreSave`; empty if unknown.
        stores: The names of its stores; empty if unknown.
        partitions: The max number of partitions of its state; None if unknown.
        properties: Other metadata from Spark, such as its variables, as JSON; empty for none.
    """

    id: str
    name: str = ""
    stores: tuple[str, ...] = ()
    partitions: int | None = None
    properties: str = ""


class _Info(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="operatorName")


class _Store(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="storeName")
    partitions: int = msgspec.field(name="numPartitions")


class _Metadata(msgspec.Struct, frozen=True):
    info: _Info = msgspec.field(name="operatorInfo")
    stores: tuple[_Store, ...] = msgspec.field(name="stateStoreInfo")
    properties: str = msgspec.field(name="operatorPropertiesJson", default="")


_METADATA: Final = msgspec.json.Decoder(_Metadata)


def operators(checkpoint: Path, batch: BatchId) -> tuple[Operator, ...]:
    """Return a query's stateful operators, as they were after a batch."""
    found = sorted(directories(checkpoint / STATE))
    return tuple(_operator(checkpoint / STATE / name, batch) for name in found)


def _operator(operator: Path, batch: BatchId) -> Operator:
    listed = list(operator_files(operator, batch))
    numbers = [int(match[1]) for match in map(METADATA_V2.fullmatch, listed) if match]
    if numbers:
        file = operator / "_metadata" / "v2" / str(max(numbers))
    elif "_metadata/metadata" in listed:
        file = operator / "_metadata" / "metadata"
    else:
        return Operator(operator.name)
    _, _, text = file.read_text(encoding="utf-8").partition("\n")
    try:
        found = _METADATA.decode(text)
    except msgspec.DecodeError as error:
        raise RecoveryError(f"{file} makes no sense: {error}.") from error
    partitions = max((store.partitions for store in found.stores), default=None)
    return Operator(
        operator.name,
        found.info.name,
        tuple(store.name for store in found.stores),
        partitions,
        found.properties,
    )


def operator_files(operator: Path, batch: BatchId) -> Iterator[str]:
    """Find the files that describe an operator as a whole, up to a batch."""
    for entry in entries(operator):
        if not entry.name.startswith("_"):
            continue
        for name in files_below(operator / entry.name, f"{entry.name}/"):
            later = METADATA_V2.fullmatch(name)
            if later is None or int(later[1]) <= batch:
                yield name


def stores_in(partition: Path) -> list[str]:
    """Return the directories of a partition's stores; `""` where it has only the one.

    Only some operators, such as a join, have several stores, each in a directory of its own.
    """
    found = directories(partition)
    return sorted(name for name in found if name not in _PARTS_OF_A_STORE) or [""]


def numbered_partitions(directory: Path, operator: Operator) -> list[str]:
    """Return the partitions of an operator that are there.

    An operator has as many as the query shuffles into, or one, where all rows meet.
    """
    found = sorted((name for name in directories(directory) if name.isdecimal()), key=int)
    whole = len(found) in {1, operator.partitions or len(found)}
    if not found or not whole or found != [str(number) for number in range(len(found))]:
        raise RecoveryError(
            f"{directory} has partitions {', '.join(found) or 'none'}, and the query has "
            f"{operator.partitions or 'all from 0 on'}."
        )
    return found


def check_stores(partition: Path, found: list[str], operator: Operator) -> None:
    """Check that a partition has all the stores of its operator."""
    have = {store or DEFAULT_STORE for store in found}
    lost = sorted(set(operator.stores) - have)
    if lost:
        raise RecoveryError(f"{partition} has no store {lost[0]}, which its operator has.")


def store_metadata(store: Path, names: set[str]) -> Iterator[str]:
    """Find the files that describe one store as a whole."""
    if "_metadata" in names:
        yield from files_below(store / "_metadata", "_metadata/")


def newest_number(names: set[str], suffix: str, version: int) -> int | None:
    """Return the highest number up to a version that a file with this suffix has."""
    pattern = re.compile(rf"(\d+)\.{suffix}")
    numbers = [int(match[1]) for match in map(pattern.fullmatch, names) if match]
    return max((number for number in numbers if number <= version), default=None)


def missing_file_error(file: Path, version: int) -> RecoveryError:
    return RecoveryError(f"{file} is not there, and version {version} of the state needs it.")


def find_hdfs_files(store: Path, names: set[str], version: int) -> Iterator[str]:
    """Find the files of one version of one store of the default provider.

    FileNotFoundError if a file has gone since it was listed.
    """
    yield from store_metadata(store, names)
    base = _hdfs_base(store, names, version)
    if base:
        yield f"{base}.snapshot"
    for number in range(base + 1, version + 1):
        delta = f"{number}.delta"
        if delta not in names:
            raise missing_file_error(store / delta, version)
        yield delta


def _hdfs_base(store: Path, names: set[str], version: int) -> int:
    """Return the snapshot on which a version is built; 0 for none.

    A new snapshot holds the whole state. As long as the deltas since an older one are smaller than
    that, the version is built on the older one: earlier checkpoints have it and most of its deltas,
    so a checkpoint uploads what has changed, and a restore reads at most twice the state.
    """
    newest = newest_number(names, "snapshot", version)
    if newest is None:
        return 0
    left = (store / f"{newest}.snapshot").stat().st_size
    base = newest
    for number in range(newest, 0, -1):
        if f"{number}.delta" not in names:
            break
        left -= (store / f"{number}.delta").stat().st_size
        if left < 0:
            break
        if number == 1 or f"{number - 1}.snapshot" in names:
            base = number - 1
    return base


def find_rocksdb_files(store: Path, names: set[str], version: int) -> Iterator[str]:
    """Find the files of one version of one store in format 1."""
    yield from store_metadata(store, names)
    snapshot = newest_number(names, "zip", version)
    if snapshot is not None:
        yield f"{snapshot}.zip"
        yield from _find_shared_files(store, f"{snapshot}.zip")
    for number in range((snapshot or 0) + 1, version + 1):
        changelog = f"{number}.changelog"
        if changelog not in names:
            raise missing_file_error(store / changelog, version)
        yield changelog


def find_rocksdb_files_by_lineage(
    store: Path, names: set[str], state: StateVersion
) -> Iterator[str]:
    """Find the files of one version of one store in format 2, by its id.

    FileNotFoundError if the changelog has gone since it was listed.
    """
    yield from store_metadata(store, names)
    lineage = [state]
    if state.snapshot not in names:
        lineage = [*lineage_of(store / state.changelog, state.version), state]
    for ancestor in reversed(lineage):
        if ancestor.snapshot in names:
            yield ancestor.snapshot
            yield from _find_shared_files(store, ancestor.snapshot)
            return
        if ancestor.changelog not in names:
            raise missing_file_error(store / ancestor.changelog, state.version)
        yield ancestor.changelog
    if lineage[0].version != 1:
        raise missing_file_error(store / lineage[0].snapshot, state.version)


def snapshot_mark(snapshot: Path) -> str:
    """Return the version that a RocksDB snapshot is marked with, such as `v1`."""
    return _read_snapshot(snapshot)[0]


def _read_snapshot(snapshot: Path) -> tuple[str, "_Snapshot"]:
    try:
        with zipfile.ZipFile(snapshot) as archive:
            mark, _, text = archive.read("metadata").decode().partition("\n")
        return mark, _SNAPSHOTS.decode(text)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise RecoveryError(f"{snapshot} is no snapshot: {error}.") from error


def _find_shared_files(store: Path, snapshot: str) -> Iterator[str]:
    """Find the files that several snapshots share, which this one names."""
    _, metadata = _read_snapshot(store / snapshot)
    tables = [table.name for table in metadata.tables]
    logs = [log.name for log in metadata.logs or ()]
    for name in (*tables, *logs):
        if not is_name(name):
            raise RecoveryError(f"{store / snapshot} names {name!r}, which is no file of it.")
    for name in (*(f"SSTs/{table}" for table in tables), *(f"logs/{log}" for log in logs)):
        if not exists(store / name):
            raise RecoveryError(f"{store / name} is not there, and {snapshot} needs it.")
        yield name


class _Table(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="dfsSstFileName")


class _Log(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="dfsLogFileName")


class _Snapshot(msgspec.Struct, frozen=True):
    tables: tuple[_Table, ...] = msgspec.field(name="sstFiles")
    logs: tuple[_Log, ...] | None = msgspec.field(name="logFiles", default=None)


_SNAPSHOTS: Final = msgspec.json.Decoder(_Snapshot)

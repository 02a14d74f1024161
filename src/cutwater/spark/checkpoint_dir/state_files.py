"""What all kinds of state have in common: operators, their metadata, and a store's versions.

    state/<operator>/_metadata/metadata          what the operator is
    state/<operator>/_metadata/v2/<b>            the same, with absolute paths of its schemas
    state/<operator>/_stateSchema/<store>/…      schemas
    state/<operator>/<partition>[/<store>]/      one state store, at version N+1 after batch N

How a store keeps its versions is its provider's business: `state_files_rocksdb`,
`state_files_hdfs`. Which provider and format a query has is fixed by its first batch.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId
from cutwater.spark.checkpoint_dir.listing import directories, entries, files_below

STATE: Final = "state"
METADATA_V2: Final = re.compile(r"_metadata/v2/(\d+)")
DEFAULT_STORE: Final = "default"
"""The name of the only store of an operator that has one; it has no directory of its own."""

_PARTS_OF_A_STORE: Final = frozenset({"SSTs", "logs", "_metadata"})


class Provider(Enum):
    """Who keeps a query's state."""

    HDFS = "HDFSBackedStateStoreProvider"
    ROCKSDB = "RocksDBStateStoreProvider"

    @classmethod
    def of(cls, class_name: str) -> "Provider":
        """Return the provider with this class.

        Raises:
            RecoveryError: If it is none of Spark's own.
        """
        for one in cls:
            if class_name.rpartition(".")[2] == one.value:
                return one
        known = " and ".join(one.value for one in cls)
        raise RecoveryError(f"its state is kept by {class_name}; only {known} are known.")


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator of a query.

    Attributes:
        id: Its number in the plan.
        name: What Spark calls it, such as `stateStoreSave`; empty if nothing says.
        stores: The names of its stores; none if nothing says.
        partitions: How many partitions its state has at most; None if nothing says.
        properties: What else Spark says of it, such as its variables, as JSON; empty for nothing.
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
    """Return a query's stateful operators, as they were after a batch.

    Raises:
        RecoveryError: If what describes one cannot be understood.
    """
    found = sorted(directories(checkpoint / STATE))
    return tuple(_operator(checkpoint / STATE / one, batch) for one in found)


def _operator(operator: Path, batch: BatchId) -> Operator:
    listed = list(operator_files(operator, batch))
    numbers = [int(one[1]) for one in map(METADATA_V2.fullmatch, listed) if one]
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
    partitions = max((one.partitions for one in found.stores), default=None)
    return Operator(
        operator.name,
        found.info.name,
        tuple(one.name for one in found.stores),
        partitions,
        found.properties,
    )


def operator_files(operator: Path, batch: BatchId) -> Iterator[str]:
    """Find what is known of an operator as a whole, up to a batch."""
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

    Raises:
        RecoveryError: If some are missing.
    """
    found = sorted((one for one in directories(directory) if one.isdecimal()), key=int)
    whole = len(found) in {1, operator.partitions or len(found)}
    if not found or not whole or found != [str(one) for one in range(len(found))]:
        raise RecoveryError(
            f"{directory} has partitions {', '.join(found) or 'none'}, and the query has "
            f"{operator.partitions or 'all from 0 on'}."
        )
    return found


def check_stores(partition: Path, found: list[str], operator: Operator) -> None:
    """See that a partition has all the stores that its operator has.

    Raises:
        RecoveryError: Naming one that is missing.
    """
    have = {one or DEFAULT_STORE for one in found}
    lost = sorted(set(operator.stores) - have)
    if lost:
        raise RecoveryError(f"{partition} has no store {lost[0]}, which its operator has.")


def store_metadata(store: Path, names: set[str]) -> Iterator[str]:
    """Find what is known of one store as a whole."""
    if "_metadata" in names:
        yield from files_below(store / "_metadata", "_metadata/")


def newest_number(names: set[str], suffix: str, version: int) -> int | None:
    """Return the highest number up to a version that a file with this suffix has."""
    pattern = re.compile(rf"(\d+)\.{suffix}")
    numbers = [int(one[1]) for one in map(pattern.fullmatch, names) if one]
    return max((one for one in numbers if one <= version), default=None)


def missing(file: Path, version: int) -> RecoveryError:
    """Make the error about a file that a version needs."""
    return RecoveryError(f"{file} is not there, and version {version} of the state needs it.")

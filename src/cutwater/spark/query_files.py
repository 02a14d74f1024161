"""A query's checkpoint directory: which of its files are "batch N committed", and moving them.

    metadata, offsets/, commits/                 the logs (`query_log`)
    sources/<source>/…                           what sources keep for themselves
    state/<operator>/_metadata/metadata          what the operator is
    state/<operator>/_metadata/v2/<b>            the same, with absolute paths of its schemas
    state/<operator>/_stateSchema/<store>/…      schemas
    state/<operator>/<partition>[/<store>]/      one state store
        <version>_<id>.changelog                 what one batch changed, and its lineage
        <version>_<id>.zip, SSTs/, logs/         a RocksDB snapshot: all there was at a version
        _metadata/schema

A store is at version N+1 after batch N. Its files are those of one lineage: the newest snapshot
in it, and the changelogs after that. The lineage is in the changelog, so output of tasks that
were repeated, and of timelines that were left, is told apart by its ids and never taken. Spark
makes every file under another name and renames it, so a hard link keeps what it was made of.
Only RocksDB in checkpoint format 2 is known here; anything else is refused.
"""

import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import NO_BATCH, BatchId
from cutwater.spark.query_log import (
    COMMITS,
    METADATA,
    OFFSETS,
    StateVersion,
    is_committed,
    lineage_of,
    replace_text,
    state_ids,
)

LISTINGS_MAX: Final = 10
"""How often a directory that changes meanwhile is looked at again."""

_SOURCES: Final = "sources"
_STATE: Final = "state"
_METADATA_V2: Final = re.compile(r"_metadata/v2/(\d+)")
_PARTS_OF_A_STORE: Final = frozenset({"SSTs", "logs", "_metadata"})


def files_of(checkpoint: Path, batch: BatchId) -> tuple[str, ...]:
    """Return the files that "this batch is committed" consists of.

    Args:
        checkpoint: A query's checkpoint directory; the query may be running.
        batch: A batch that `query_log.is_committed`, or `NO_BATCH`.

    Returns:
        Paths below the directory, sorted. For `NO_BATCH` what there is of the query's id and its
        sources' files, which may be nothing.

    Raises:
        RecoveryError: If a file that is needed is not there, or the state is of another kind
            than this module knows. The file is named. While the query is running that may pass:
            Spark may have deleted a file of a version that it has just replaced.
    """
    sources = _steady_files(checkpoint / _SOURCES)
    found = [f"{_SOURCES}/{name}" for name in sources]
    if batch == NO_BATCH:
        return tuple(sorted([*found, METADATA] if (checkpoint / METADATA).exists() else found))
    found += [METADATA, f"{OFFSETS}/{batch}", f"{COMMITS}/{batch}"]
    if batch > 0:
        # Spark reads the batch before the last one to know where that one began.
        found.append(f"{OFFSETS}/{batch - 1}")
    for name in found:
        if not (checkpoint / name).exists():
            raise RecoveryError(f"{checkpoint / name} is not there, and batch {batch} needs it.")
    if is_committed(checkpoint, BatchId(batch - 1)):
        found.append(f"{COMMITS}/{batch - 1}")
    try:
        found += _state_files(checkpoint, batch)
    except FileNotFoundError as error:
        raise RecoveryError(f"{error.filename} went away while it was read.") from error
    return tuple(sorted(found))


def pin(checkpoint: Path, batch: BatchId, into: Path) -> None:
    """Keep the files of a committed batch, whatever Spark deletes afterwards.

    They are linked, or copied where the file system has no links to offer.

    Args:
        checkpoint: A query's checkpoint directory; the query may be running.
        batch: A batch that `query_log.is_committed`, or `NO_BATCH`.
        into: The directory to make. It is not there after an error.

    Raises:
        FileExistsError: If there is something of that name.
        RecoveryError: If `files_of` finds no complete set of files, however often it looks.
    """
    into.mkdir(parents=True)
    try:
        for left in reversed(range(LISTINGS_MAX)):
            try:
                for name in files_of(checkpoint, batch):
                    _link(checkpoint / name, into / name)
            except RecoveryError:
                # What is missing may have been deleted since it was listed; then the next
                # listing has what took its place.
                if not left:
                    raise
                shutil.rmtree(into)
                into.mkdir()
            else:
                return
    except BaseException:
        shutil.rmtree(into)
        raise


def settle(checkpoint: Path) -> None:
    """Make a directory that was filled from elsewhere one that Spark can start in.

    Operator metadata of format 2 (transformWithState, some joins) names the schemas by absolute
    paths, which are changed to where the schemas are now. May be repeated. No query may be
    running in the directory.

    Raises:
        RecoveryError: If a schema is not there, or the metadata cannot be understood.
    """
    for file in sorted(checkpoint.glob(f"{_STATE}/*/_metadata/v2/*")):
        if not _is_ours(file.name):
            continue
        operator = file.parents[2]
        version, _, text = file.read_text(encoding="utf-8").partition("\n")
        try:
            metadata = msgspec.json.decode(text)
            for store in metadata["stateStoreInfo"]:
                paths = store["stateSchemaFilePaths"]
                store["stateSchemaFilePaths"] = [_moved(path, operator) for path in paths]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise RecoveryError(f"{file} makes no sense: {error!r}.") from error
        replace_text(file, f"{version}\n{msgspec.json.encode(metadata).decode()}")


def _moved(path: str, operator: Path) -> str:
    """Return where a schema is now, as Spark writes a path."""
    marker = "/_stateSchema/"
    schema = operator.absolute() / f"_stateSchema/{path.rpartition(marker)[2]}"
    if marker not in path or not schema.is_file():
        raise RecoveryError(f"{schema} is not there, and the operator's metadata names {path}.")
    return f"file:{schema.as_posix()}"


# -- state


def _state_files(checkpoint: Path, batch: BatchId) -> Iterator[str]:
    state = checkpoint / _STATE
    ids = state_ids(checkpoint, batch)
    operators = [one.name for one in _entries(state) if one.is_dir()]
    if ids is None and operators:
        raise _unknown(state, "its ids are not in the commit log")
    ids = ids or {}
    if sorted(ids) != sorted(operators):
        raise RecoveryError(
            f"{state} has operators {sorted(operators)}, and batch {batch} committed {sorted(ids)}."
        )
    for operator, partitions in ids.items():
        base = f"{_STATE}/{operator}"
        yield from (f"{base}/{name}" for name in _operator_files(checkpoint / base, batch))
        for partition, stores in enumerate(partitions):
            below = f"{base}/{partition}"
            found = _partition_files(checkpoint / below, batch + 1, frozenset(stores))
            yield from (f"{below}/{name}" for name in found)


def _operator_files(operator: Path, batch: BatchId) -> Iterator[str]:
    """Find what is known of an operator as a whole."""
    described = False
    for entry in _entries(operator):
        if not entry.name.startswith("_"):
            continue
        for name in _files_below(operator / entry.name, f"{entry.name}/"):
            later = _METADATA_V2.fullmatch(name)
            if later is None or int(later[1]) <= batch:
                described |= name.startswith("_metadata/")
                yield name
    if not described:
        raise RecoveryError(f"{operator / '_metadata'} has no file, and batch {batch} needs one.")


def _partition_files(partition: Path, version: int, ids: frozenset[str]) -> Iterator[str]:
    entries = [one.name for one in _entries(partition) if one.is_dir()]
    # Only a join has several stores in a partition, each in a directory of its own.
    stores = sorted(name for name in entries if name not in _PARTS_OF_A_STORE) or [""]
    left = set(ids)
    for store in stores:
        names = {one.name for one in _entries(partition / store)}
        own = [one for one in ids for kind in _KINDS if f"{version}_{one}.{kind}" in names]
        if len(set(own)) != 1:
            raise _unknown(partition / store, f"version {version} is none of {sorted(ids)}")
        left -= set(own)
        for name in _store_files(partition / store, names, StateVersion(version, own[0])):
            yield f"{store}/{name}" if store else name
    if left:
        raise RecoveryError(f"{partition} has no version {version} with id {min(left)}.")


_KINDS: Final = ("changelog", "zip")


def _store_files(store: Path, names: set[str], state: StateVersion) -> Iterator[str]:
    """Find the newest snapshot in the lineage of a state, and the changelogs after it."""
    if "_metadata" in names:
        yield from _files_below(store / "_metadata", "_metadata/")
    lineage = [state]
    if state.snapshot not in names:
        lineage = [*lineage_of(store / state.changelog, state.version), state]
    for one in reversed(lineage):
        if one.snapshot in names:
            yield one.snapshot
            yield from _files_of_snapshot(store, one.snapshot)
            return
        if one.changelog not in names:
            raise _missing(store / one.changelog, state.version)
        yield one.changelog
    if lineage[0].version != 1:
        raise _missing(store / lineage[0].snapshot, state.version)


def _files_of_snapshot(store: Path, snapshot: str) -> Iterator[str]:
    """Find the files that several snapshots share, which this one names."""
    try:
        with zipfile.ZipFile(store / snapshot) as archive:
            _, _, text = archive.read("metadata").decode().partition("\n")
        metadata = _SNAPSHOTS.decode(text)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise RecoveryError(f"{store / snapshot} is no snapshot: {error}.") from error
    shared = [f"SSTs/{one.name}" for one in metadata.tables]
    shared += [f"logs/{one.name}" for one in metadata.logs or ()]
    for name in shared:
        if not (store / name).exists():
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


def _missing(file: Path, version: int) -> RecoveryError:
    return RecoveryError(f"{file} is not there, and version {version} of the state needs it.")


def _unknown(directory: Path, reason: str) -> RecoveryError:
    found = next(iter(sorted(_files_below(directory))), "no file")
    return RecoveryError(
        f"{directory} is not state of RocksDB in checkpoint format 2 with changelogs: {reason}; "
        f"found {found}."
    )


# -- the file system


def _is_ours(name: str) -> bool:
    """Say whether a file counts: files in the making are hidden, checksums can be missed."""
    return not name.startswith(".") and not name.endswith(".crc")


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """List a directory, in order; nothing if it is not there."""
    try:
        with os.scandir(directory) as found:
            return sorted((one for one in found if _is_ours(one.name)), key=lambda one: one.name)
    except FileNotFoundError:
        return []


def _files_below(directory: Path, prefix: str = "") -> Iterator[str]:
    for entry in _entries(directory):
        if entry.is_dir():
            yield from _files_below(directory / entry.name, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"


def _steady_files(directory: Path) -> list[str]:
    """List all files below a directory in which one is made after the other.

    A listing may miss a file and have a later one, which would be a log with a hole. Two equal
    ones in a row cannot: what the second one misses was made after all that the first one has.
    """
    found = list(_files_below(directory))
    for _ in range(LISTINGS_MAX):
        before, found = found, list(_files_below(directory))
        if before == found:
            return found
    raise RecoveryError(f"{directory} changes whenever it is listed.")


def _link(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            os.link(file, target)
        except FileNotFoundError:
            raise
        except OSError:
            # Another device, or a file system without links: a file does not change once it is
            # there, so a copy is as good.
            shutil.copyfile(file, target)
    except FileNotFoundError as error:
        raise RecoveryError(f"{file} went away while it was linked.") from error

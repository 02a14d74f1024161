"""A query's checkpoint directory: which of its files are "batch N committed", and moving them.

    metadata, offsets/, commits/        the logs (`logs`)
    sources/<source>/…                  what sources keep: a log of files, Kafka's first offsets
    state/<operator>/…                  the state (`state_files`)

A store is at version N+1 after batch N. Spark writes every file under another name and renames it,
so a hard link keeps its content. The files of a source are taken as a whole: entries after batch N
are read again as part of the next batch, and a source may have compacted older ones into them.

State is RocksDB in checkpoint format 2 if the query started in a session of Cutwater. An adopted
query keeps its original format: format 1, or Spark's default provider, whose files have numbers and
no ids. There a file of another timeline looks like one of this timeline, so such a directory is
filled once, with the files of one batch, and never rolled back in place.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import NO_BATCH, BatchId
from cutwater.spark.checkpoint_dir.listing import (
    LISTINGS_MAX,
    directories,
    files_below,
    names,
    steady_files,
)
from cutwater.spark.checkpoint_dir.logs import (
    COMMITS,
    METADATA,
    OFFSETS,
    StateVersion,
    is_committed,
    read_batch,
    replace_text,
    state_ids,
)
from cutwater.spark.checkpoint_dir.state_files import (
    ROCKSDB_KINDS,
    STATE,
    Provider,
    check_stores,
    find_hdfs_files,
    find_rocksdb_files,
    find_rocksdb_files_by_lineage,
    numbered_partitions,
    operator_files,
    operators,
    stores_in,
)
from cutwater.store.backends.directories import exists, is_below, is_file, remove_tree

_SOURCES: Final = "sources"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"


def files_of(checkpoint: Path, batch: BatchId) -> tuple[str, ...]:
    """Return the files that "this batch is committed" consists of; the query may be running.

    Paths are below the directory, and sorted. For `NO_BATCH` they are what there is of the query's
    id and its sources' files, which may be nothing.

    Raises:
        RecoveryError: If a required file is missing, or the state has an unknown format. While the
            query is running, a retry may succeed: Spark may have deleted a file of a version that
            it has just replaced.
    """
    sources = steady_files(checkpoint / _SOURCES)
    found = [f"{_SOURCES}/{name}" for name in sources]
    if batch == NO_BATCH:
        return tuple(sorted([*found, METADATA] if exists(checkpoint / METADATA) else found))
    found += [METADATA, f"{OFFSETS}/{batch}", f"{COMMITS}/{batch}"]
    if batch > 0:
        # Spark reads the batch before the last one to know where that one began.
        found.append(f"{OFFSETS}/{batch - 1}")
    for name in found:
        if not exists(checkpoint / name):
            raise RecoveryError(f"{checkpoint / name} is not there, and batch {batch} needs it.")
    if is_committed(checkpoint, BatchId(batch - 1)):
        found.append(f"{COMMITS}/{batch - 1}")
    try:
        found += _state_files(checkpoint, batch)
    except FileNotFoundError as error:
        raise RecoveryError(f"{error.filename} went away while it was read.") from error
    return tuple(sorted(found))


def pin(checkpoint: Path, batch: BatchId, into: Path, *, linked: bool = True) -> tuple[str, ...]:
    """Keep the files of a committed batch, even if Spark deletes them afterwards.

    The query may be running. `into` is the directory to make; it is not there after an error. Files
    are linked where the file system can, or copied if not `linked`: that leaves no trace in the
    original.

    Raises:
        FileExistsError: If there is something of that name.
        RecoveryError: If `files_of` finds no complete set of files, however often it looks.
    """
    into.mkdir(parents=True)
    try:
        for left in reversed(range(LISTINGS_MAX)):
            try:
                files = files_of(checkpoint, batch)
                for name in files:
                    _take(checkpoint / name, into / name, linked=linked)
            except RecoveryError:
                # What is missing may have been deleted since it was listed; then the next
                # listing has what took its place.
                if not left:
                    raise
                remove_tree(into)
                into.mkdir()
            else:
                return files
    except BaseException:
        remove_tree(into)
        raise
    raise AssertionError("the last try returns or raises")


def source_log(checkpoint: Path, number: int | None) -> Path | None:
    """Return where a source keeps what it keeps, by its number; None if it has none."""
    return None if number is None else checkpoint / _SOURCES / str(number)


def settle(checkpoint: Path, home: Path | None = None) -> None:
    """Prepare a directory that was filled from elsewhere, so that Spark can start in it.

    Operator metadata of format 2 (transformWithState, some joins) names the schemas by absolute
    paths, which are changed to where the schemas are now: `home`, if the directory moves before
    Spark starts. May be repeated. No query may be running in the directory.
    """
    for file in _described_by_path(checkpoint):
        operator = file.parents[2]
        there = (home or checkpoint).absolute() / STATE / operator.name
        version, _, text = file.read_text(encoding="utf-8").partition("\n")
        try:
            metadata = msgspec.json.decode(text)
            for store in metadata["stateStoreInfo"]:
                paths = store["stateSchemaFilePaths"]
                store["stateSchemaFilePaths"] = [_relocate(path, operator, there) for path in paths]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise RecoveryError(f"{file} makes no sense: {error!r}.") from error
        replace_text(file, f"{version}\n{msgspec.json.encode(metadata).decode()}")


def _described_by_path(checkpoint: Path) -> Iterator[Path]:
    for operator in directories(checkpoint / STATE):
        v2 = checkpoint / STATE / operator / "_metadata" / "v2"
        yield from (v2 / name for name in sorted(names(v2)))


def _relocate(path: str, operator: Path, home: Path) -> str:
    """Return where a schema will be, as Spark writes a path."""
    marker = "/_stateSchema/"
    schema = f"_stateSchema/{path.rpartition(marker)[2]}"
    if marker not in path or not is_below(schema) or not is_file(operator / schema):
        raise RecoveryError(
            f"{operator / schema} is not there, and the operator's metadata names {path}."
        )
    return f"file:{(home / schema).as_posix()}"


# -- state


def provider_of(checkpoint: Path, batch: BatchId) -> Provider:
    """Return the provider of a query's state, from its log."""
    settings = read_batch(checkpoint, batch).settings
    return Provider.of(settings.get(PROVIDER, Provider.HDFS.value))


def _state_files(checkpoint: Path, batch: BatchId) -> Iterator[str]:
    if not directories(checkpoint / STATE) and not state_ids(checkpoint, batch):
        return
    for operator in directories(checkpoint / STATE):
        base = f"{STATE}/{operator}"
        yield from (f"{base}/{name}" for name in operator_files(checkpoint / base, batch))
    ids = state_ids(checkpoint, batch)
    if ids is None:
        yield from _files_by_number(checkpoint, batch)
        return
    if sorted(ids) != directories(checkpoint / STATE):
        raise RecoveryError(
            f"{checkpoint / STATE} has operators {directories(checkpoint / STATE)}, and batch "
            f"{batch} committed {sorted(ids)}."
        )
    for operator, partitions in ids.items():
        _check_described(checkpoint, operator, batch)
        for partition, stores in enumerate(partitions):
            below = f"{STATE}/{operator}/{partition}"
            found = _partition_by_lineage(checkpoint / below, batch + 1, frozenset(stores))
            yield from (f"{below}/{name}" for name in found)


def _check_described(checkpoint: Path, operator: str, batch: BatchId) -> None:
    directory = checkpoint / STATE / operator
    if not any(name.startswith("_metadata/") for name in operator_files(directory, batch)):
        raise RecoveryError(f"{directory / '_metadata'} has no file, and batch {batch} needs one.")


def _files_by_number(checkpoint: Path, batch: BatchId) -> Iterator[str]:
    """Find the state of a query in checkpoint format 1, of either provider."""
    hdfs = provider_of(checkpoint, batch) is Provider.HDFS
    files = find_hdfs_files if hdfs else find_rocksdb_files
    for operator in operators(checkpoint, batch):
        base = f"{STATE}/{operator.id}"
        for partition in numbered_partitions(checkpoint / base, operator):
            found = stores_in(checkpoint / base / partition)
            check_stores(checkpoint / base / partition, found, operator)
            for store in found:
                below = f"{base}/{partition}/{store}" if store else f"{base}/{partition}"
                directory = checkpoint / below
                for name in files(directory, names(directory), batch + 1):
                    yield f"{below}/{name}"


def _partition_by_lineage(partition: Path, version: int, ids: frozenset[str]) -> Iterator[str]:
    left = set(ids)
    for store in stores_in(partition):
        there = names(partition / store)
        own = {
            state_id
            for state_id in ids
            for kind in ROCKSDB_KINDS
            if f"{version}_{state_id}.{kind}" in there
        }
        if len(own) != 1:
            raise _format_error(partition / store, f"version {version} is none of {sorted(ids)}")
        left -= own
        state = StateVersion(version, own.pop())
        for name in find_rocksdb_files_by_lineage(partition / store, there, state):
            yield f"{store}/{name}" if store else name
    if left:
        raise RecoveryError(f"{partition} has no version {version} with id {min(left)}.")


def _format_error(directory: Path, reason: str) -> RecoveryError:
    found = next(iter(sorted(files_below(directory))), "no file")
    return RecoveryError(
        f"{directory} is not state of RocksDB in checkpoint format 2: {reason}; found {found}."
    )


# -- the file system


def _take(file: Path, target: Path, *, linked: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            if linked:
                os.link(file, target)
                return
        except FileNotFoundError:
            raise
        except OSError:
            # Another device, or a file system without links.
            pass
        # A file does not change once it is there, so a copy is as good.
        shutil.copyfile(file, target)
    except FileNotFoundError as error:
        raise RecoveryError(f"{file} went away while it was taken.") from error

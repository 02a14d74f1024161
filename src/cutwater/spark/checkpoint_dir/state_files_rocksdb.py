"""One state store of RocksDB: which files make a version, in both of Spark's checkpoint formats.

    format 1    <version>.zip, <version>.changelog
    format 2    <version>_<id>.zip, <version>_<id>.changelog
    both        SSTs/, logs/                what snapshots share; each names what it needs
                _metadata/schema

A `.zip` is a snapshot: all there was at a version. With changelogs off there is one for every
version; with changelogs on, one now and then, made in the background. A version is the newest
snapshot up to it and every changelog after that. In format 2 a changelog has its lineage in it,
so the output of repeated tasks and of timelines that were left is told apart by its ids and never
taken. Format 1 has only numbers: there a directory must be filled with these files alone.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.logs import StateVersion, lineage_of
from cutwater.spark.checkpoint_dir.state_files import missing, newest_number, store_metadata
from cutwater.store.backends.directories import exists, is_name

KINDS: Final = ("changelog", "zip")
"""What a version's file may be."""


def files_by_number(store: Path, names: set[str], version: int) -> Iterator[str]:
    """Find the files of one version of one store in format 1.

    Args:
        store: The store's directory.
        names: What is in it.
        version: The version.

    Raises:
        RecoveryError: If a file that is needed is not there, or a snapshot is damaged.
    """
    yield from store_metadata(store, names)
    snapshot = newest_number(names, "zip", version)
    if snapshot is not None:
        yield f"{snapshot}.zip"
        yield from _shared(store, f"{snapshot}.zip")
    for number in range((snapshot or 0) + 1, version + 1):
        changelog = f"{number}.changelog"
        if changelog not in names:
            raise missing(store / changelog, version)
        yield changelog


def files_by_lineage(store: Path, names: set[str], state: StateVersion) -> Iterator[str]:
    """Find the files of one version of one store in format 2, by its id.

    Args:
        store: The store's directory.
        names: What is in it.
        state: The version and its id.

    Raises:
        FileNotFoundError: If the changelog has gone since it was listed.
        RecoveryError: If a file that is needed is not there or damaged.
    """
    yield from store_metadata(store, names)
    lineage = [state]
    if state.snapshot not in names:
        lineage = [*lineage_of(store / state.changelog, state.version), state]
    for one in reversed(lineage):
        if one.snapshot in names:
            yield one.snapshot
            yield from _shared(store, one.snapshot)
            return
        if one.changelog not in names:
            raise missing(store / one.changelog, state.version)
        yield one.changelog
    if lineage[0].version != 1:
        raise missing(store / lineage[0].snapshot, state.version)


def _shared(store: Path, snapshot: str) -> Iterator[str]:
    """Find the files that several snapshots share, which this one names."""
    try:
        with zipfile.ZipFile(store / snapshot) as archive:
            _, _, text = archive.read("metadata").decode().partition("\n")
        metadata = _SNAPSHOTS.decode(text)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise RecoveryError(f"{store / snapshot} is no snapshot: {error}.") from error
    tables = [one.name for one in metadata.tables]
    logs = [one.name for one in metadata.logs or ()]
    for name in (*tables, *logs):
        if not is_name(name):
            raise RecoveryError(f"{store / snapshot} names {name!r}, which is no file of it.")
    for name in (*(f"SSTs/{one}" for one in tables), *(f"logs/{one}" for one in logs)):
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

"""Which files make up a version of state in memory: checkpoints share a snapshot while they can."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.state_files import find_hdfs_files


def store_with(directory: Path, sizes: Mapping[str, int]) -> Path:
    for name, size in sizes.items():
        (directory / name).write_bytes(b"x" * size)
    return directory


def found(store: Path, version: int) -> list[str]:
    return list(find_hdfs_files(store, {file.name for file in store.iterdir()}, version))


def deltas(first: int, last: int, size: int = 10) -> dict[str, int]:
    return {f"{number}.delta": size for number in range(first, last + 1)}


def test_without_a_snapshot_a_version_is_every_delta(tmp_path: Path) -> None:
    store = store_with(tmp_path, deltas(1, 4))
    assert found(store, 3) == ["1.delta", "2.delta", "3.delta"]


def test_a_large_snapshot_is_not_uploaded_while_the_deltas_are_smaller(tmp_path: Path) -> None:
    snapshots = {"5.snapshot": 1000, "15.snapshot": 1000}
    store = store_with(tmp_path, {**deltas(2, 16), **snapshots})
    assert found(store, 16) == ["5.snapshot", *deltas(6, 16)]


def test_the_deltas_from_the_beginning_on_may_be_smaller_than_any_snapshot(tmp_path: Path) -> None:
    store = store_with(tmp_path, {**deltas(1, 6), "5.snapshot": 1000})
    assert found(store, 6) == [*deltas(1, 6)]


def test_a_snapshot_that_is_smaller_than_its_deltas_replaces_them(tmp_path: Path) -> None:
    store = store_with(tmp_path, {**deltas(1, 16), "5.snapshot": 30, "15.snapshot": 30})
    assert found(store, 16) == ["15.snapshot", "16.delta"]


def test_deltas_that_spark_has_deleted_are_not_missed(tmp_path: Path) -> None:
    store = store_with(tmp_path, {**deltas(9, 16), "5.snapshot": 1000, "15.snapshot": 1000})
    assert found(store, 16) == ["15.snapshot", "16.delta"]


def test_a_missing_delta_after_the_snapshot_is_named(tmp_path: Path) -> None:
    store = store_with(tmp_path, {"5.snapshot": 10, "7.delta": 10})
    with pytest.raises(RecoveryError, match=r"6\.delta is not there, and version 7"):
        found(store, 7)

"""Checkpoint directories of plain queries, as Spark 4.3 wrote them: exactly the files that count.

`make_query_directories.py` made them and asked Spark which files it needs; Kafka's log is written
by hand, in the form of its source.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.golden.archives import QUERIES, unpacked

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId
from cutwater.operations.migration.plain_query import look
from cutwater.spark.checkpoint_dir.files import files_of, pin, settle

EXPECTED: Mapping[str, Mapping[str, list[str]]] = json.loads(
    (QUERIES / "expected.json").read_text(encoding="utf-8")
)
AT = BatchId(3)

OPERATORS = {
    "aggregation": ["stateStoreSave"],
    "join": ["symmetricHashJoin"],
    "join-format-3": ["symmetricHashJoin"],
    "chained": ["stateStoreSave", "stateStoreSave"],
    "transformWithState": ["transformWithStateInPySparkExec"],
    "stateless": [],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_exactly_the_files_that_spark_needs_are_listed(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    expected = EXPECTED[name]

    listed = set(files_of(directory, AT))

    assert listed == {*expected["logs"], *expected["needed"], *expected["description"]}
    assert (directory / "offsets" / str(AT + 1)).exists()
    assert {f"offsets/{AT + 1}", f"commits/{AT + 1}"}.isdisjoint(listed)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_directory_rebuilt_from_them_has_no_other_and_lists_the_same(
    name: str, tmp_path: Path
) -> None:
    directory = unpacked(name, tmp_path)
    rebuilt = tmp_path / "rebuilt"

    pin(directory, AT, rebuilt, linked=False)
    settle(rebuilt, tmp_path / "place")

    there = {path.relative_to(rebuilt).as_posix() for path in rebuilt.rglob("*") if path.is_file()}
    assert there == set(files_of(rebuilt, AT)) == set(files_of(directory, AT))
    for file in rebuilt.rglob("_metadata/v2/*"):
        assert f'"file:{tmp_path}/place/state/' in file.read_text(encoding="utf-8")
    # A copy shares nothing with the original.
    assert all((directory / name).stat().st_nlink == 1 for name in there)


@pytest.mark.parametrize("name", EXPECTED)
def test_whatever_spark_needs_is_missed_by_name(name: str, tmp_path: Path) -> None:
    directory = unpacked(name, tmp_path)
    pin(directory, AT, tmp_path / "rebuilt", linked=False)
    rebuilt = tmp_path / "rebuilt"
    schemas = ("/_metadata/schema", "/_stateSchema/", "/_metadata/v2/")
    needed = [text for text in EXPECTED[name]["needed"] if not any(x in text for x in schemas)]

    for text in needed:
        (rebuilt / text).rename(tmp_path / "away")
        with pytest.raises(RecoveryError, match="/rebuilt/state/"):
            files_of(rebuilt, AT)
        (tmp_path / "away").rename(rebuilt / text)
    assert files_of(rebuilt, AT)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_query_is_known_by_its_directory(name: str, tmp_path: Path) -> None:
    query = look(unpacked(name, tmp_path))

    kind = next(
        operator for operator in sorted(OPERATORS, key=len, reverse=True) if name.endswith(operator)
    )
    assert [operator.name for operator in query.operators] == OPERATORS[kind]
    assert query.batch >= 6
    assert query.planned is None
    assert not query.operators or query.format == (2 if "-2-" in name else 1)
    provider = "HDFSBackedStateStoreProvider" if "hdfs" in name else "RocksDBStateStoreProvider"
    assert query.provider == (provider if OPERATORS[kind] else "")
    assert query.partitions == (2 if OPERATORS[kind] else None)
    assert (query.watermark_ms > 0) == (kind in {"join", "join-format-3", "chained"})


@pytest.mark.parametrize(
    ("name", "stale"),
    [
        ("hdfs-aggregation", ["5.delta", "6.snapshot"]),
        ("rocksdb-1-aggregation", ["5.zip", "6.changelog"]),
        ("rocksdb-1-changelog-aggregation", ["5.zip", "6.changelog"]),
    ],
)
def test_files_of_later_versions_are_never_taken(
    name: str, stale: list[str], tmp_path: Path
) -> None:
    directory = unpacked(name, tmp_path)
    listed = files_of(directory, AT)
    for store in directory.glob("state/0/[0-9]*"):
        for text in stale:
            (store / text).write_bytes(b"of another timeline")

    assert files_of(directory, AT) == listed


def test_a_store_or_partition_that_is_gone_is_missed(tmp_path: Path) -> None:
    directory = unpacked("hdfs-join", tmp_path)
    for store in directory.glob("state/0/1/left-keyToNumValues"):
        shutil.rmtree(store)
    with pytest.raises(RecoveryError, match="no store left-keyToNumValues"):
        files_of(directory, AT)

    shutil.rmtree(directory / "state" / "0" / "0")
    with pytest.raises(RecoveryError, match="has partitions 1, and the query has 2"):
        files_of(directory, AT)


def test_an_unknown_state_store_provider_is_refused_by_name(tmp_path: Path) -> None:
    directory = unpacked("hdfs-aggregation", tmp_path)
    offsets = directory / "offsets" / str(AT)
    text = offsets.read_text(encoding="utf-8")
    offsets.write_text(text.replace("HDFSBackedStateStore", "OtherStateStore"), encoding="utf-8")

    with pytest.raises(RecoveryError, match=r"kept by .*OtherStateStoreProvider; only"):
        files_of(directory, AT)


def test_what_kafka_and_files_keep_for_themselves_is_taken_whole(tmp_path: Path) -> None:
    directory = unpacked("stateless", tmp_path)
    kafka = directory / "sources" / "1"
    kafka.mkdir()
    # A zero byte, a version, and where each partition began: the form of Kafka's source.
    (kafka / "0").write_bytes(b'\x00v1\n{"orders":{"0":12,"1":0}}')
    (kafka / ".0.crc").write_bytes(b"crc")

    pin(directory, AT, tmp_path / "rebuilt")

    rebuilt = tmp_path / "rebuilt" / "sources"
    assert (rebuilt / "1" / "0").read_bytes() == (kafka / "0").read_bytes()
    assert sorted(path.name for path in (rebuilt / "1").iterdir()) == ["0"]
    # Also what was listed for later batches: it is read again as a part of the next one.
    assert sorted(path.name for path in (rebuilt / "0").iterdir()) == [str(n) for n in range(7)]

"""A query's files at one batch, moved elsewhere: the same state, and the same output from there.

The oracle is the query itself: it runs over all input without a break, and what it put out is
what the moved one must put out, together with what came before the batch it was moved at.
"""

import errno
import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cutwater.errors import RecoveryError
from cutwater.ids import NO_BATCH, BatchId, Generation, PipelineId
from cutwater.spark.query_files import LISTINGS_MAX, files_of, pin, settle
from cutwater.spark.query_log import (
    BatchLog,
    StateVersion,
    is_committed,
    lineage_of,
    mint_query_id,
    next_watermark_ms,
    read_batch,
)
from cutwater.store.blobs import Blobs
from cutwater.store.memory import MemoryBackend

Rows = list[tuple[object, ...]]

FILES = 7
"""One file is one batch."""

AT = BatchId(3)
"""The batch the query is moved at: later ones exist, and so does a snapshot before."""

WAIT_S = 60.0
STATE = "spark.sql.streaming.stateStore"

OFTEN = {
    f"{STATE}.maintenanceInterval": "200ms",
    f"{STATE}.minDeltasForSnapshot": "2",
    "spark.sql.shuffle.partitions": "2",
}
"""Snapshots of RocksDB every other batch instead of every ten."""


# -- queries


@dataclass(frozen=True)
class Kind:
    """A kind of query, and how its state is read.

    Attributes:
        build: Makes the query from a reader that gives a new stream on every call.
        mode: Its output mode.
        keys: For updates: how many columns are the key that later rows replace.
        views: The options of each way to read its state.
        conf: What Spark must be told.
    """

    build: Callable[[Callable[[], DataFrame]], DataFrame]
    mode: str
    keys: int | None = None
    views: tuple[Mapping[str, str], ...] = ({},)
    conf: Mapping[str, str] = field(default_factory=dict)


def totals(read: Callable[[], DataFrame]) -> DataFrame:
    return read().groupBy("k").agg(F.sum("v").alias("total"))


def firsts(read: Callable[[], DataFrame]) -> DataFrame:
    return read().withColumn("w", F.expr("v % 17")).dropDuplicates(["w"]).select("k", "v", "w")


def pairs(read: Callable[[], DataFrame]) -> DataFrame:
    left = read().withWatermark("t", "90 seconds")
    right = read().selectExpr("k as k2", "v + 10 as v2", "t as t2")
    near = "k = k2 and v = v2 and t2 between t - interval 2 minutes and t + interval 2 minutes"
    return left.join(right.withWatermark("t2", "90 seconds"), F.expr(near), "leftOuter")


def chained(read: Callable[[], DataFrame]) -> DataFrame:
    inner = (
        read()
        .withWatermark("t", "30 seconds")
        .groupBy(F.window("t", "1 minute"), "k")
        .agg(F.sum("v").alias("total"))
    )
    outer = inner.groupBy(F.window("window", "3 minutes")).agg(F.sum("total").alias("total"))
    return outer.select("window.start", "total")


def processed(read: Callable[[], DataFrame]) -> DataFrame:
    # A class inside a function goes to Spark's workers by value.
    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(  # noqa: N802 - Spark's name
            self, key: tuple[int], rows: Iterator[Row], _: object
        ) -> Iterator[Row]:
            (total,) = self.total.get() or (0,)
            total += sum(row.v for row in rows)
            self.total.update((total,))
            yield Row(k=key[0], total=total)

        def close(self) -> None:
            pass

    schema = "k int, total long"
    return read().groupBy("k").transformWithState(Totals(), schema, "Update", "None")


def even(read: Callable[[], DataFrame]) -> DataFrame:
    return read().where("v % 2 = 0")


SIDES = tuple({"joinSide": side} for side in ("left", "right"))

KINDS = {
    "aggregation": Kind(totals, "update", keys=1),
    "dropDuplicates": Kind(firsts, "append"),
    "join": Kind(pairs, "append", views=SIDES),
    "join-format-3": Kind(
        pairs, "append", views=SIDES, conf={"spark.sql.streaming.join.stateFormatVersion": "3"}
    ),
    "chained": Kind(chained, "append", views=({"operatorId": "0"}, {"operatorId": "1"})),
    "transformWithState": Kind(processed, "update", keys=1, views=({"stateVarName": "total"},)),
    "stateless": Kind(even, "append", views=()),
}


# -- running them


@pytest.fixture
def often(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, its maintenance of state restarted with a short interval."""
    with conf(spark, OFTEN):
        restart_maintenance(spark)
        write_checksums(spark, wanted=False)
        yield spark
        restart_maintenance(spark)


def jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - Java has no types here
    return spark._jvm


def restart_maintenance(spark: SparkSession) -> None:
    """The next store that is loaded starts it again, with the interval of that moment."""
    jvm(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()


def write_checksums(spark: SparkSession, *, wanted: bool) -> None:
    local = jvm(spark).java.net.URI("file:///")
    hadoop = spark._jsc.hadoopConfiguration()
    jvm(spark).org.apache.hadoop.fs.FileSystem.get(local, hadoop).setWriteChecksum(wanted)


@contextmanager
def conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with ten rows each; times grow, one minute a file."""
    directory = tmp_path_factory.mktemp("inputs")
    for number in range(FILES):
        rows = (
            {"k": row % 5, "v": number * 10 + row, "t": f"2024-01-01 00:{number:02}:{row * 5:02}"}
            for row in range(10)
        )
        file = directory / f"{number:03}.json"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        # Spark takes the oldest first, and its clock counts whole milliseconds.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    return directory


@dataclass(frozen=True)
class World:
    """One kind of query over the inputs."""

    spark: SparkSession
    kind: Kind
    inputs: Path

    def run(
        self, checkpoint: Path, seen: Callable[[int], object] = lambda _: None
    ) -> dict[int, Rows]:
        """Run over all that is left of the input; return the rows of every batch."""
        batches: dict[int, Rows] = {}

        def collect(frame: DataFrame, batch: int) -> None:
            seen(batch)
            batches[batch] = [tuple(row) for row in frame.collect()]

        with conf(self.spark, self.kind.conf):
            query = self.start(checkpoint, collect)
        query.awaitTermination()
        return batches

    def start(self, checkpoint: Path, collect: Callable[[DataFrame, int], None]) -> StreamingQuery:
        def read() -> DataFrame:
            stream = self.spark.readStream.schema("k int, v long, t timestamp")
            return stream.option("maxFilesPerTrigger", "1").json(str(self.inputs))

        writer = self.kind.build(read).writeStream.outputMode(self.kind.mode)
        writer = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(collect)
        return writer.trigger(availableNow=True).start()

    def state(self, checkpoint: Path, batch: BatchId) -> list[Rows]:
        """Read the state after a batch, row by row, in every way there is."""
        found = []
        for view in self.kind.views:
            reader = self.spark.read.format("statestore").option("batchId", str(batch))
            frame = reader.options(**view).load(str(checkpoint))
            found.append(sorted((tuple(row) for row in frame.collect()), key=str))
        return found

    def result(self, batches: Mapping[int, Rows]) -> Counter[tuple[object, ...]]:
        """Return what a table that takes every batch shows in the end."""
        rows = [row for _, found in sorted(batches.items()) for row in found]
        if self.kind.keys is not None:
            rows = list({row[: self.kind.keys]: row for row in rows}.values())
        return Counter(rows)


def snapshots(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.endswith(".zip")]


def without_sources(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not name.startswith("sources/")]


def tables(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if "/SSTs/" in name]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {WAIT_S} s"
        time.sleep(0.05)


# -- every kind of query


@pytest.mark.parametrize("name", KINDS)
def test_a_moved_query_has_the_same_state_and_goes_on_to_the_same_output(
    often: SparkSession, inputs: Path, tmp_path: Path, name: str
) -> None:
    world = World(often, KINDS[name], inputs)
    original, moved = tmp_path / "original", tmp_path / "new" / "moved"
    whole = world.run(original)
    state = world.state(original, AT)
    stateful = bool(world.kind.views)
    if stateful:
        wait_for(lambda: snapshots(files_of(original, AT)), "a snapshot in RocksDB")

    pin(original, AT, tmp_path / "pins")
    # Stores that are still open upload to where they were opened; nothing else may go there.
    restart_maintenance(often)
    shutil.rmtree(original)
    blobs = Blobs(MemoryBackend(), PipelineId("p"), Generation(1))
    blobs.fetch_tree(blobs.store_tree(tmp_path / "pins", {}), moved)
    settle(moved)

    pinned = files_of(moved, AT)
    assert max(whole) > AT
    assert not is_committed(moved, BatchId(AT + 1))
    assert bool(snapshots(pinned)) == bool(tables(pinned)) == stateful
    assert world.state(moved, AT) == state
    assert all(state)
    before = {batch: rows for batch, rows in whole.items() if batch <= AT}
    rest = world.run(moved)
    assert min(rest) == AT + 1
    assert world.result(before | rest) == world.result(whole)
    assert not original.exists()
    # What the batch consists of stays the same, whatever comes after it.
    assert without_sources(files_of(moved, AT)) == without_sources(pinned)
    # And what was moved once can be moved again.
    last = BatchId(max(rest))
    pin(moved, last, tmp_path / "again")
    state = world.state(moved, last)
    restart_maintenance(often)
    shutil.rmtree(moved)
    settle(tmp_path / "again")
    assert world.state(tmp_path / "again", last) == state


# -- a query that runs on


def test_every_batch_can_be_pinned_while_spark_runs_on_and_deletes(
    often: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    world = World(often, KINDS["aggregation"], inputs)
    checkpoint = tmp_path / "original"

    def pin_previous(batch: int) -> None:
        pin(checkpoint, BatchId(batch - 1), tmp_path / "pins" / str(batch - 1))

    with conf(often, {"spark.sql.streaming.minBatchesToRetain": "2"}):
        world.run(checkpoint, pin_previous)

    wait_for(lambda: not (checkpoint / "offsets" / "0").exists(), "deletion of old batches")
    assert files_of(tmp_path / "pins" / "-1", NO_BATCH)
    for batch in range(FILES - 1):
        (rows,) = world.state(tmp_path / "pins" / str(batch), BatchId(batch))
        totals = {key.k: value[0] for key, value, _ in rows}  # type: ignore[attr-defined, index]
        values = range((batch + 1) * 10)
        assert totals == {k: sum(v for v in values if v % 5 == k) for k in range(5)}


# -- one finished query, looked at from many sides


@pytest.fixture(scope="module")
def finished(spark: SparkSession, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an aggregation, with snapshots at and before `AT` in every store."""
    checkpoint = tmp_path_factory.mktemp("finished") / "checkpoint"
    with conf(spark, OFTEN):
        restart_maintenance(spark)
        World(spark, KINDS["aggregation"], inputs).run(checkpoint)
        wait_for(lambda: len(snapshots(files_of(checkpoint, AT))) == 2, "a snapshot in RocksDB")
        restart_maintenance(spark)
    return checkpoint


@pytest.fixture
def checkpoint(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "checkpoint"))


def version_of(file: Path) -> int:
    return int(file.name.split("_")[0])


def found(root: Path) -> set[str]:
    return {one.relative_to(root).as_posix() for one in root.rglob("*") if one.is_file()}


def test_the_files_of_a_batch_are_its_own_and_not_those_of_later_ones(finished: Path) -> None:
    names = files_of(finished, AT)

    assert {name for name in names if not name.startswith(("state/", "sources/"))} == {
        "metadata",
        f"offsets/{AT - 1}",
        f"offsets/{AT}",
        f"commits/{AT - 1}",
        f"commits/{AT}",
    }
    versions = {version_of(Path(name)) for name in names if "_" in Path(name).name}
    assert max(versions) == AT + 1
    assert set(names) < found(finished)
    assert list(names) == sorted(set(names))


def test_the_first_batch_needs_none_before_it(finished: Path) -> None:
    names = files_of(finished, BatchId(0))

    assert {name for name in names if name.startswith(("offsets/", "commits/"))} == {
        "offsets/0",
        "commits/0",
    }


def test_before_the_first_batch_there_is_what_the_query_and_its_sources_keep(
    finished: Path, tmp_path: Path
) -> None:
    names = files_of(finished, NO_BATCH)

    assert "metadata" in names
    assert {name.split("/")[0] for name in names} == {"metadata", "sources"}
    assert files_of(tmp_path / "no-checkpoint", NO_BATCH) == ()
    pin(tmp_path / "no-checkpoint", NO_BATCH, tmp_path / "pins")
    assert found(tmp_path / "pins") == set()


def test_a_batch_that_is_not_committed_has_no_files(finished: Path, tmp_path: Path) -> None:
    assert is_committed(finished, AT)
    assert not is_committed(finished, BatchId(FILES))
    with pytest.raises(RecoveryError, match=f"/{FILES} is not there"):
        files_of(finished, BatchId(FILES))
    with pytest.raises(RecoveryError, match=f"/{FILES} is not there"):
        pin(finished, BatchId(FILES), tmp_path / "pins")
    assert not (tmp_path / "pins").exists()


def test_whatever_is_missing_is_named(checkpoint: Path) -> None:
    optional = (f"commits/{AT - 1}", "sources/", "_metadata/schema", ".zip")
    needed = [name for name in files_of(checkpoint, AT) if not any(x in name for x in optional)]
    assert tables(tuple(needed))

    for name in needed:
        (checkpoint / name).rename(checkpoint / "away")
        with pytest.raises(RecoveryError, match="/checkpoint/") as caught:
            files_of(checkpoint, AT)
        (checkpoint / "away").rename(checkpoint / name)
        assert str(Path(name).parent) in str(caught.value), name


def test_without_any_snapshot_a_lineage_that_begins_with_one_is_incomplete(
    checkpoint: Path,
) -> None:
    for snapshot in checkpoint.rglob("*.zip"):
        snapshot.unlink()

    with pytest.raises(RecoveryError, match=r"\.zip is not there"):
        files_of(checkpoint, BatchId(FILES - 1))


def test_files_of_other_timelines_are_never_taken(
    often: SparkSession, inputs: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """A repeated task leaves a whole snapshot of its own, of the same version and newer."""
    world = World(often, KINDS["aggregation"], inputs)
    batches = [BatchId(batch) for batch in range(FILES)]
    names, state = [files_of(checkpoint, one) for one in batches], world.state(checkpoint, AT)
    other = "ffffffff-ffff-4fff-bfff-ffffffffffff"
    for store in checkpoint.glob("state/0/[0-9]*"):
        latest = max(store.glob("*.zip"), key=version_of)
        for version in range(1, FILES + 1):
            shutil.copyfile(latest, store / f"{version}_{other}.zip")
            shutil.copyfile(latest, store / f"{version}_{other}.changelog")

    assert [files_of(checkpoint, one) for one in batches] == names
    pin(checkpoint, AT, tmp_path / "pins")
    assert world.state(tmp_path / "pins", AT) == state


def test_checksums_and_files_in_the_making_are_never_taken(
    often: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    world = World(often, KINDS["aggregation"], inputs)
    checkpoint = tmp_path / "original"
    with conf(often, {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "true"}):
        write_checksums(often, wanted=True)
        world.run(checkpoint)
        write_checksums(often, wanted=False)
    for name in ("0.crc", ".9.tmp"):
        (checkpoint / "sources" / "0" / name).touch()
    made = found(checkpoint)
    assert f"offsets/.{AT}.crc" in made
    assert any(name.endswith(".changelog.crc") for name in made)

    state = world.state(checkpoint, AT)
    pin(checkpoint, AT, tmp_path / "pins")

    pinned = found(tmp_path / "pins")
    assert not [name for name in pinned if name.endswith(".crc") or "/." in name]
    assert world.state(tmp_path / "pins", AT) == state


# -- pins


def test_a_pin_survives_that_a_file_is_deleted_after_it_was_listed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark does: upload a newer snapshot, then delete what it made superfluous."""
    snapshot = max(checkpoint.glob("state/0/0/*.zip"), key=version_of)
    batch, away = BatchId(version_of(snapshot) - 1), tmp_path / "away"
    after = set(files_of(checkpoint, batch))
    snapshot.rename(away)
    before = set(files_of(checkpoint, batch))
    superfluous = sorted(before - after)
    assert superfluous
    link = os.link

    def maintained(source: Path, target: Path) -> None:
        if away.exists():
            away.rename(snapshot)
            for name in superfluous:
                (checkpoint / name).unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", maintained)
    pin(checkpoint, batch, tmp_path / "pins")

    assert found(tmp_path / "pins") == after != before


def test_a_pin_gives_up_when_a_file_is_always_gone(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def gone(source: Path, target: Path) -> None:
        tries.append(source)
        raise FileNotFoundError(errno.ENOENT, "gone", str(source), None, str(target))

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(RecoveryError, match="went away"):
        pin(checkpoint, AT, tmp_path / "pins")

    assert len(tries) == LISTINGS_MAX
    assert not (tmp_path / "pins").exists()


def test_a_pin_is_a_copy_where_there_are_no_links(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another device", str(source), None, str(target))

    pin(checkpoint, AT, tmp_path / "links")
    monkeypatch.setattr(os, "link", elsewhere)
    pin(checkpoint, AT, tmp_path / "copies")

    for name in files_of(checkpoint, AT):
        original, copy = checkpoint / name, tmp_path / "copies" / name
        assert (tmp_path / "links" / name).samefile(original)
        assert not copy.samefile(original)
        assert copy.read_bytes() == original.read_bytes()


def test_a_pin_takes_nobodys_place(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()

    with pytest.raises(FileExistsError):
        pin(checkpoint, AT, tmp_path / "pins")
    assert (tmp_path / "pins").is_dir()


# -- what is refused


@pytest.mark.parametrize(
    ("provider", "file"),
    [("HDFSBackedStateStoreProvider", "1.delta"), ("RocksDBStateStoreProvider", "1.changelog")],
)
def test_state_of_another_kind_is_refused(
    spark: SparkSession, inputs: Path, tmp_path: Path, provider: str, file: str
) -> None:
    package = "org.apache.spark.sql.execution.streaming.state"
    settings = {f"{STATE}.providerClass": f"{package}.{provider}"}
    with conf(spark, settings | {f"{STATE}.checkpointFormatVersion": "1"}):
        World(spark, KINDS["aggregation"], inputs).run(tmp_path / "original")

    with pytest.raises(RecoveryError, match=f"RocksDB in checkpoint format 2.*found 0/0/{file}"):
        files_of(tmp_path / "original", BatchId(0))


@pytest.mark.parametrize(
    ("suffix", "words"), [(".changelog", "compressed by lz4"), (".zip", "is no snapshot")]
)
@pytest.mark.parametrize("data", [b"", b"LZ4Block", b"LZ4Block\x25" + b"\1" * 40])
def test_a_damaged_file_of_the_state_is_named(
    checkpoint: Path, suffix: str, words: str, data: bytes
) -> None:
    batch = AT if any(".changelog" in name for name in files_of(checkpoint, AT)) else AT - 1
    names = [name for name in files_of(checkpoint, BatchId(batch)) if name.endswith(suffix)]
    for name in names:
        (checkpoint / name).write_bytes(data)

    with pytest.raises(RecoveryError, match=words) as caught:
        files_of(checkpoint, BatchId(batch))
    assert any(name in str(caught.value) for name in names)


def test_a_lineage_longer_than_a_block_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Written by the code that Spark writes with, in blocks of 64 bytes."""
    expected = [
        StateVersion(version, str(uuid.UUID(int=version * 7**40))) for version in range(5, 90)
    ]
    lineage = [{"version": one.version, "checkpointUniqueId": one.id} for one in expected]
    java = jvm(spark)
    file = java.java.io.FileOutputStream(str(tmp_path / "changelog"))
    out = java.java.io.DataOutputStream(java.net.jpountz.lz4.LZ4BlockOutputStream(file, 64))
    out.writeUTF("v3")
    out.writeUTF(json.dumps(lineage))
    out.close()

    assert lineage_of(tmp_path / "changelog", 90) == expected
    with pytest.raises(RecoveryError, match="holes"):
        lineage_of(tmp_path / "changelog", 91)


# -- logs


def test_the_log_of_a_batch_has_offsets_and_watermarks(
    often: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()

    def with_silence(read: Callable[[], DataFrame]) -> DataFrame:
        silent = often.readStream.schema("k int, v long, t timestamp").json(str(tmp_path / "empty"))
        return silent.union(read()).withWatermark("t", "10 seconds")

    World(often, Kind(with_silence, "append", views=()), inputs).run(tmp_path / "original")

    minute = 1_704_067_200_000
    assert read_batch(tmp_path / "original", BatchId(0)) == BatchLog((None, '{"logOffset":0}'), 0)
    assert next_watermark_ms(tmp_path / "original", BatchId(0)) == minute + 35_000
    assert read_batch(tmp_path / "original", BatchId(1)) == BatchLog(
        (None, '{"logOffset":1}'), minute + 35_000
    )
    assert next_watermark_ms(tmp_path / "original", BatchId(1)) == minute + 95_000


@pytest.mark.parametrize(
    "text", ["", "v1", "v9\n{}", "v1\n{}", "v1\nno json", 'v1\n{"batchWatermarkMs":"x"}']
)
def test_a_log_entry_that_makes_no_sense_is_named(checkpoint: Path, text: str) -> None:
    for name in ("offsets", "commits"):
        (checkpoint / name / "0").write_text(text, encoding="utf-8")

    with pytest.raises(RecoveryError, match="offsets/0"):
        read_batch(checkpoint, BatchId(0))
    with pytest.raises(RecoveryError, match="commits/0"):
        next_watermark_ms(checkpoint, BatchId(0))


# -- a new place


def test_a_fork_has_a_query_id_of_its_own(
    often: SparkSession, inputs: Path, checkpoint: Path, tmp_path: Path
) -> None:
    old = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
    pin(checkpoint, AT, tmp_path / "fork")

    new = mint_query_id(tmp_path / "fork")

    def nothing(frame: DataFrame, _: int) -> None:
        frame.collect()

    query = World(often, KINDS["aggregation"], inputs).start(tmp_path / "fork", nothing)
    query.awaitTermination()
    assert str(query.id) == new != old
    # The pin was a link, and the original is as it was.
    assert json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"] == old


def schema_metadata(checkpoint: Path, text: str) -> Path:
    metadata = checkpoint / "state" / "0" / "_metadata" / "v2" / "3"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(text, encoding="utf-8")
    return metadata


def stores(*paths: str) -> str:
    return json.dumps({"stateStoreInfo": [{"stateSchemaFilePaths": list(paths)}]})


def test_settling_changes_the_paths_of_schemas_and_no_link(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new é"
    before = "v2\n" + stores("file:/gone/state/0/_stateSchema/default/0_one")
    metadata = schema_metadata(new, before)
    os.link(metadata, old)
    schema = new / "state" / "0" / "_stateSchema" / "default" / "0_one"
    schema.parent.mkdir(parents=True)
    schema.touch()
    (metadata.parent / ".3.crc").touch()

    settle(new)
    settle(new)

    assert found(metadata.parent) == {"3"}

    version, text = metadata.read_text(encoding="utf-8").split("\n")
    assert version == "v2"
    assert json.loads(text) == json.loads(stores(f"file:{schema}"))
    assert old.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "text",
    [
        "v2",
        "v2\n{}",
        'v2\n{"stateStoreInfo":[1]}',
        "v2\n" + stores("file:/elsewhere"),
        "v2\n" + stores("file:/gone/state/0/_stateSchema/default/0_one"),
    ],
)
def test_metadata_that_leads_nowhere_is_an_error(tmp_path: Path, text: str) -> None:
    metadata = schema_metadata(tmp_path, text)

    with pytest.raises(RecoveryError, match="state/0/"):
        settle(tmp_path)
    assert metadata.read_text(encoding="utf-8") == text

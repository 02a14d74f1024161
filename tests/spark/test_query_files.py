"""A query's files at one batch, moved elsewhere: the same state, and the same output from there.

The oracle is the query itself: it runs over all input without a break, and what it put out is
what the moved one must put out, together with what came before the batch it was moved at.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.features import READS_STATE_AND_STOPS_IT
from tests.spark.plain_queries import (
    AT,
    FILES,
    KINDS,
    OFTEN,
    Kind,
    World,
    conf,
    jvm,
    restart_maintenance,
    wait_for,
    write_checksums,
    write_inputs,
)
from tests.trees import stored_tree

from cutwater.errors import RecoveryError
from cutwater.ids import NO_BATCH, BatchId, Generation, PipelineId
from cutwater.spark.checkpoint_dir.files import files_of, pin, settle
from cutwater.spark.checkpoint_dir.listing import LISTINGS_MAX
from cutwater.spark.checkpoint_dir.logs import (
    BatchLog,
    StateVersion,
    format_of,
    is_committed,
    lineage_of,
    mint_query_id,
    next_watermark_ms,
    read_batch,
)
from cutwater.spark.engine.query_step import FORMAT
from cutwater.spark.versions import require_version
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.blobs.blobs import Blobs

pytestmark = READS_STATE_AND_STOPS_IT


@pytest.fixture
def often(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, its maintenance of state restarted with a short interval."""
    with conf(spark, OFTEN):
        restart_maintenance(spark)
        write_checksums(spark, wanted=False)
        yield spark
        restart_maintenance(spark)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files there will be."""
    directory = tmp_path_factory.mktemp("inputs")
    write_inputs(directory)
    return directory


def snapshots(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.endswith((".zip", ".snapshot"))]


def without_sources(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not name.startswith("sources/")]


def tables(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if "/SSTs/" in name]


def settings_to_continue(spark: SparkSession, checkpoint: Path) -> Mapping[str, str]:
    """Return what a run of ours sets where Spark does not keep the format of a directory."""
    if require_version(spark.version).keeps_format:
        return {}
    return {FORMAT: str(format_of(checkpoint, AT))}


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
    blobs.fetch_tree(stored_tree(blobs, tmp_path / "pins", {}), moved)
    settle(moved)

    pinned = files_of(moved, AT)
    assert max(whole) > AT
    assert not is_committed(moved, BatchId(AT + 1))
    assert bool(snapshots(pinned)) == stateful
    assert bool(tables(pinned)) == (stateful and not name.startswith("hdfs"))
    # Where files have numbers and no ids, one too many would be read as if it belonged here.
    assert found(moved) == set(pinned)
    assert world.state(moved, AT) == state
    assert all(state)
    before = {batch: rows for batch, rows in whole.items() if batch <= AT}
    # As it goes on in a run of ours: what the query began with is kept, whatever is set now.
    kept = settings_to_continue(often, moved)
    rest = replace(world, kind=replace(world.kind, conf=kept)).run(moved)
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
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


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
    names, state = [files_of(checkpoint, batch) for batch in batches], world.state(checkpoint, AT)
    other = "ffffffff-ffff-4fff-bfff-ffffffffffff"
    for store in checkpoint.glob("state/0/[0-9]*"):
        latest = max(store.glob("*.zip"), key=version_of)
        for version in range(1, FILES + 1):
            shutil.copyfile(latest, store / f"{version}_{other}.zip")
            shutil.copyfile(latest, store / f"{version}_{other}.changelog")

    assert [files_of(checkpoint, batch) for batch in batches] == names
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


def test_a_pin_replaces_nothing(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()

    with pytest.raises(FileExistsError):
        pin(checkpoint, AT, tmp_path / "pins")
    assert (tmp_path / "pins").is_dir()


# -- what is refused


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
    lineage = [{"version": row.version, "checkpointUniqueId": row.id} for row in expected]
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

"""Whether a source still has what follows a cut: files are looked for, by the source's own log."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trees import stored_tree
from tests.unit.store.cuts import PIPELINE

from cutwater.ids import BatchId, CheckpointId, Generation, StepId
from cutwater.operations.rewind.source_history import Past, is_checked, past_of
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.protocol.evolution.identity import InputIdentity, InputKind, StepIdentity
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore

STEP = StepId("files")
STREAM = "0:FileStreamSource"


@pytest.fixture
def store() -> PipelineStore:
    return PipelineStore.of(MemoryBackend(), PIPELINE)


def cut_at(
    store: PipelineStore, directory: Path, offset: int | None, read: Sequence[Path | str]
) -> Cut:
    """A cut through a step that reads files, one for each entry of its log."""
    query = directory / "query"
    log = query / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(read):
        address = file if isinstance(file, str) else file.as_uri()
        entry = {"path": address, "timestamp": 1, "batchId": number}
        (log / str(number)).write_text(f"v1\n{json.dumps(entry)}\n")
    snapshot = StepSnapshot(
        STEP,
        CheckpointId(1),
        Generation(1),
        BatchId(len(read) - 1),
        offsets={} if offset is None else {STREAM: json.dumps({"logOffset": offset})},
        state=stored_tree(store.blobs(Generation(1)), query, {}),
    )
    return Cut(CheckpointId(1), Generation(1), CheckpointKind.CHECKPOINT, {STEP: snapshot})


def identified(cut: Cut) -> Cut:
    """The same step behind a source of ours, which has no log: Spark counts its own alone."""
    inputs = (
        InputIdentity(InputKind.SOURCE, "ours"),
        InputIdentity(InputKind.SOURCE, "files", log=0),
    )
    (snapshot,) = cut.snapshots.values()
    (text,) = snapshot.offsets.values()
    offsets = {"1:FileStreamSource": text}
    return replace(
        cut,
        snapshots={STEP: replace(snapshot, offsets=offsets)},
        identities={STEP: StepIdentity(inputs=inputs)},
    )


def files(directory: Path, *names: str) -> list[Path]:
    for name in names:
        (directory / name).write_text("rows")
    return [directory / name for name in names]


def test_files_that_both_cuts_have_read_may_be_gone(store: PipelineStore, tmp_path: Path) -> None:
    read = files(tmp_path, "a", "b b", "c")
    head = cut_at(store, tmp_path, 2, read)
    target = cut_at(store, tmp_path, 0, read[:1])

    read[0].unlink()

    assert past_of(store, head, target) == Past()


def test_files_that_only_the_newer_cut_has_read_must_be_there(
    store: PipelineStore, tmp_path: Path
) -> None:
    read = files(tmp_path, "a", "b b", "c")
    head = cut_at(store, tmp_path, 2, read)
    target = cut_at(store, tmp_path, 0, read[:1])

    read[1].unlink()
    assert past_of(store, head, target).forgotten == {
        f"files/{STREAM}": f"{read[1]} was read since and is gone"
    }
    read[2].unlink()
    assert "b b and 1 more was read" in past_of(store, head, target).forgotten[f"files/{STREAM}"]


def test_a_step_that_had_read_nothing_needs_every_file(
    store: PipelineStore, tmp_path: Path
) -> None:
    read = files(tmp_path, "a")
    head = cut_at(store, tmp_path, 0, read)
    fresh = cut_at(store, tmp_path, None, ())

    read[0].unlink()

    assert past_of(store, head, fresh).forgotten
    assert past_of(store, head, replace(fresh, snapshots={})).forgotten


def test_files_that_are_not_on_this_machine_were_not_asked_for(
    store: PipelineStore, tmp_path: Path
) -> None:
    read: list[Path | str] = [*files(tmp_path, "a"), "s3a://bucket/b", "hdfs://host/c"]
    head = cut_at(store, tmp_path, 2, read)

    behind = past_of(store, head, cut_at(store, tmp_path, 0, ()))

    assert behind == Past(unasked={f"files/{STREAM}": "its files are not on this machine"})
    # Nothing was read since: nothing needs to be there.
    assert past_of(store, head, head) == Past()


def test_what_a_damaged_head_has_read_is_not_known(store: PipelineStore, tmp_path: Path) -> None:
    head = cut_at(store, tmp_path, 0, files(tmp_path, "a"))
    for path in store.backend.list(PipelinePaths(PIPELINE).blobs):
        store.backend.delete(path)

    unasked = past_of(store, head, replace(head, snapshots={})).unasked

    assert unasked == {f"files/{STREAM}": "the current checkpoint is damaged"}


def test_where_the_head_is_not_known_nothing_can_be_said(
    store: PipelineStore, tmp_path: Path
) -> None:
    assert past_of(store, None, cut_at(store, tmp_path, 0, ())) == Past()


@pytest.mark.parametrize(
    ("offset", "known"),
    [
        ('{"logOffset": 3}', True),
        ('{"sequence": 3}', True),
        ('{"nexmark bids": 3}', True),
        ('{"topic": {"0": 3}}', False),
        ("7", False),
        ("seven", False),
        (None, False),
    ],
)
def test_what_is_known_of_a_source_is_told_by_its_offset(offset: str | None, known: bool) -> None:
    assert is_checked(offset) is known


def test_the_log_of_a_source_is_found_by_sparks_own_count(
    store: PipelineStore, tmp_path: Path
) -> None:
    read = files(tmp_path, "a", "b", "c")
    head = identified(cut_at(store, tmp_path, 2, read))
    target = cut_at(store, tmp_path, 0, read[:1])

    assert past_of(store, head, target) == Past()
    read[2].unlink()
    assert list(past_of(store, head, target).forgotten.values()) == [
        f"{read[2]} was read since and is gone"
    ]

"""Rewinds and forks killed with SIGKILL before and after every durable write, without Spark.

The list of writes comes from the code: a rewind that is not killed names them. After each kill the
recovery that every run begins with must find the rewind finished or undone, never half; and the
next rewind must work.
"""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.operation_client import OperationClient
from tests.unit.operations.prepared_pipeline import NAME, below, prepare_pipeline

import cutwater
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.backends.local import LocalBackend
from cutwater.store.records.catalog import list_pipelines

WRITES_OF_A_REWIND = [
    *("lease", "log", "targets", "attempts", "manifests", "log"),
    *("left", "right", "committed", "lease"),
]
WRITES_OF_A_FORK = [
    *("blobs", "origin", "log", "attempts", "manifests", "log", "names", "labels"),
]


@pytest.fixture(scope="module")
def operations() -> Iterator[OperationClient]:
    found = OperationClient()
    yield found
    found.close()


def moments(writes: list[str]) -> Iterator[tuple[str, str, str]]:
    """Every moment at which a process can die: before and after each write."""
    seen: Counter[str] = Counter()
    for write in writes:
        seen[write] += 1
        for moment in ("before", "after"):
            yield moment, write, str(seen[write])


def is_decided(moment: tuple[str, str, str]) -> bool:
    """Whether the decision has been written at that moment."""
    all_moments = list(moments(WRITES_OF_A_REWIND))
    return all_moments.index(moment) >= all_moments.index(("after", "log", "2"))


def test_a_rewind_makes_these_writes_in_this_order(
    operations: OperationClient, tmp_path: Path
) -> None:
    assert operations.run(prepare_pipeline(tmp_path).store, NAME, "rewind", "2") == (
        0,
        WRITES_OF_A_REWIND,
    )


def test_a_rewind_killed_at_any_write_is_finished_or_was_never_made(
    operations: OperationClient, tmp_path: Path
) -> None:
    prepared = prepare_pipeline(tmp_path)
    before, shown = 5, 50
    for number, moment in enumerate(moments(WRITES_OF_A_REWIND)):
        to = number % 2 + 1
        code, _ = operations.run(prepared.store, NAME, "rewind", str(to), *moment)
        assert code == -signal.SIGKILL, moment

        restored = prepared.recover()

        store = prepared.opened()
        if is_decided(moment):
            before, shown = store.attempts.highest(), to * 10
        assert restored.cut is not None
        assert restored.cut.checkpoint_id == before, moment
        assert restored.cut.stream_positions["numbers/0"] == f'{{"sequence": {shown}}}'
        assert restored.standing.highest_id == store.attempts.highest()
        assert prepared.shown() == below(shown), moment
    assert cutwater.rewind(NAME, to="5", store=prepared.store, yes=True).done
    assert prepared.shown() == below(50)


@pytest.mark.long
def test_rewinds_killed_one_after_the_other_never_lose_their_way(
    operations: OperationClient, tmp_path: Path
) -> None:
    prepared = prepare_pipeline(tmp_path)
    for number, moment in enumerate(moments(WRITES_OF_A_REWIND[1:-1])):
        code, _ = operations.run(prepared.store, NAME, "rewind", str(number % 5 + 1), *moment)
        assert code == -signal.SIGKILL, moment

    restored = prepared.recover()

    log = prepared.opened().log.read()
    assert restored.cut is not None
    position = restored.cut.stream_positions["numbers/0"]
    shown = 30 if "40" in position else int(position.partition(": ")[2].rstrip("}"))
    assert prepared.shown() == below(shown)
    assert (
        len([decision for decision in log.decisions if decision.kind is CheckpointKind.REWIND]) >= 6
    )


def test_a_fork_makes_these_writes_in_this_order(
    operations: OperationClient, tmp_path: Path
) -> None:
    assert operations.run(prepare_pipeline(tmp_path).store, NAME, "fork", "trial") == (
        0,
        WRITES_OF_A_FORK,
    )


def test_a_fork_killed_at_any_write_is_there_whole_or_not_at_all(
    operations: OperationClient, tmp_path: Path
) -> None:
    prepared = prepare_pipeline(tmp_path)
    before = prepared.opened().log.read().entries
    for number, moment in enumerate(moments(WRITES_OF_A_FORK)):
        name = f"trial-{number}"
        code, _ = operations.run(prepared.store, NAME, "fork", name, *moment)
        assert code == -signal.SIGKILL, moment

        there = name in list_pipelines(LocalBackend(prepared.store))

        assert there == (moment == ("after", "names", "1") or "labels" in moment)
        if not there:
            cutwater.fork(NAME, name, start_from="2", store=prepared.store)
        store = prepared.opened(name)
        head = store.log.read().head
        assert head is not None
        cut = store.manifests.read(head.checkpoint_id, head.manifest_sha256)
        for snapshot in cut.snapshots.values():
            assert all(store.blobs(cut.generation).problem(ref) is None for ref in snapshot.blobs)
    assert prepared.opened().log.read().entries == before
    assert prepared.shown() == below(50)

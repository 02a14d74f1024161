"""Inspection: the log says what there is, reports only how it went, and every byte is compared."""

from dataclasses import replace

import pytest
from tests.unit.store.checkpoint_writer import (
    BEGAN_MS,
    ONE,
    TABLE,
    CheckpointWriter,
    attempt_report,
)
from tests.unit.store.faulty import FaultyBackend

from cutwater.ids import BatchId, CheckpointId, Generation
from cutwater.protocol.cut import BlobRef, CheckpointKind, Committable
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.recovery import Damage
from cutwater.store.maintenance.inspect import CheckpointView, Inspector, Status
from cutwater.store.paths import ObjectPath
from cutwater.store.records.envelope import digest
from cutwater.store.records.reports import AttemptStatus

SAVEPOINT, REWIND = CheckpointKind.SAVEPOINT, CheckpointKind.REWIND


@pytest.fixture
def writer() -> CheckpointWriter:
    return CheckpointWriter(FaultyBackend())


def views(
    writer: CheckpointWriter, *, running: bool = False, everything: bool = False
) -> list[tuple[int, str]]:
    found = Inspector(writer.store, running).checkpoints(everything=everything)
    return [(view.id, view.status.value) for view in found]


def one(writer: CheckpointWriter, number: int, *, running: bool = False) -> CheckpointView:
    view = Inspector(writer.store, running).one(CheckpointId(number))
    assert view is not None
    listed = Inspector(writer.store, running).checkpoints(everything=True)
    assert view in listed
    return view


def test_a_pipeline_that_has_done_nothing_has_nothing_to_list(writer: CheckpointWriter) -> None:
    assert views(writer) == []
    assert Inspector(writer.store).one(CheckpointId(1)) is None


def test_decided_ones_are_completed_and_others_have_failed_whatever_reports_say(
    writer: CheckpointWriter,
) -> None:
    writer.decide(1)
    writer.attempt(2)
    writer.decide(3, SAVEPOINT, name="saved")
    writer.attempt(4)
    writer.store.reports.write(attempt_report(1, status=AttemptStatus.FAILED, failure="a lie"))
    writer.store.reports.write(attempt_report(2, status=AttemptStatus.FAILED, failure="too slow"))
    writer.store.reports.write(attempt_report(4))

    assert views(writer) == [(1, "COMPLETED"), (2, "FAILED"), (3, "COMPLETED"), (4, "FAILED")]
    assert one(writer, 1).failure == ""
    assert one(writer, 2).failure == "too slow"
    assert one(writer, 3).name == "saved"
    assert "ended before it was decided" in one(writer, 4).failure
    assert [one(writer, number).is_head for number in (1, 3)] == [False, True]


def test_one_checkpoint_is_found_by_its_number(writer: CheckpointWriter) -> None:
    """Seed 000: `get_checkpoint(id)`; also an attempt that was never decided has its number."""
    writer.decide(1)
    writer.decide(2, CheckpointKind.SAVEPOINT, name="kept")
    writer.attempt(3)
    inspector = Inspector(writer.store, False)

    found = [inspector.one(CheckpointId(number)) for number in (1, 2, 3, 4)]

    assert [view and (view.id, view.status, view.name) for view in found] == [
        (1, Status.COMPLETED, None),
        (2, Status.COMPLETED, "kept"),
        (3, Status.FAILED, None),
        None,
    ]


def test_the_last_attempt_of_a_running_process_is_in_progress(writer: CheckpointWriter) -> None:
    writer.decide(1)
    writer.attempt(2)
    writer.attempt(3)

    assert views(writer, running=True)[1:] == [(2, "FAILED"), (3, "IN_PROGRESS")]
    assert one(writer, 3, running=True).failure == ""
    assert views(writer)[2] == (3, "FAILED")

    # Neither once it has told how it ended, nor if another generation runs by now.
    writer.store.reports.write(attempt_report(3, status=AttemptStatus.FAILED, failure="too slow"))
    assert one(writer, 3, running=True).status is Status.FAILED
    writer.attempt(4)
    writer.claim(Generation(2))
    assert one(writer, 4, running=True).status is Status.FAILED


def test_a_report_of_another_generation_is_of_another_attempt(writer: CheckpointWriter) -> None:
    """The store took no number then, so a later process has used it; it is not over."""
    before = {"generation": Generation(0), "status": AttemptStatus.FAILED, "failure": "full"}
    writer.decide(1)
    writer.attempt(2)
    for number in (1, 2):
        writer.store.reports.write(attempt_report(number, **before))

    open_now = one(writer, 2, running=True)

    assert (open_now.status, open_now.failure) == (Status.IN_PROGRESS, "")
    assert "ended before it was decided" in one(writer, 2).failure
    assert one(writer, 1).report is None


def test_what_was_deleted_is_listed_only_on_request(writer: CheckpointWriter) -> None:
    writer.attempt(1)
    writer.decide(2)
    writer.decide(3, SAVEPOINT, name="saved")
    writer.attempt(4)
    writer.decide(5)
    writer.attempt(6)
    writer.backend.delete(writer.paths.manifest(CheckpointId(2)))

    assert [number for number, _ in views(writer)] == [3, 5, 6]
    assert [number for number, _ in views(writer, everything=True)] == [1, 2, 3, 4, 5, 6]
    gone = one(writer, 2)
    assert (gone.status, gone.discarded, gone.cut, gone.problem) == (
        Status.COMPLETED,
        True,
        None,
        "",
    )
    assert gone.started_at_ms == BEGAN_MS + 2000


def test_the_head_is_listed_although_its_manifest_is_gone(writer: CheckpointWriter) -> None:
    writer.decide(1)
    writer.decide(2)
    writer.backend.delete(writer.paths.manifest(CheckpointId(2)))

    assert [number for number, _ in views(writer)] == [1, 2]
    assert Inspector(writer.store).damages(one(writer, 2))[0].problem == "it is gone"


def test_what_cannot_be_read_is_said(writer: CheckpointWriter) -> None:
    writer.decide(1, SAVEPOINT, name="saved")
    writer.attempt(2)
    writer.store.reports.write(attempt_report(1, name="saved"))
    for path in (
        writer.paths.manifest(CheckpointId(1)),
        writer.paths.attempt(CheckpointId(1)),
        writer.paths.attempt(CheckpointId(2)),
        writer.paths.committed(writer.store.commits.slots()[0]),
    ):
        writer.backend.put(path, b"damaged")

    saved, attempt = one(writer, 1), one(writer, 2)

    assert (saved.cut, saved.started_at_ms, saved.versions) == (None, None, None)
    assert (saved.name, saved.discarded) == ("saved", False)
    assert "not those that were written" in saved.problem
    (damage,) = Inspector(writer.store).damages(saved)
    assert damage.name == writer.paths.manifest(CheckpointId(1))
    assert (attempt.kind, attempt.generation, attempt.started_at_ms) == (None, None, None)
    assert attempt.name is None


def test_a_rewind_tells_where_it_goes_and_when_it_was_decided(writer: CheckpointWriter) -> None:
    writer.decide(1)
    writer.decide(2)
    writer.attempt(3, REWIND)
    writer.store.attempts.ids()
    writer.backend.delete(writer.paths.attempt(CheckpointId(3)))
    writer.decide(3, REWIND, origin=2)

    rewind = one(writer, 3)

    assert (rewind.kind, rewind.rewinds_to, rewind.is_head) == (REWIND, 1, True)
    assert rewind.started_at_ms == BEGAN_MS + 3000
    assert one(writer, 1).rewinds_to is None
    assert rewind.versions == {TABLE: "3"}


# -- verifying


def test_a_sound_checkpoint_has_no_damages_and_shared_objects_are_read_once(
    writer: CheckpointWriter,
) -> None:
    writer.decide(1)
    writer.decide(2, in_flight=True)
    inspector = Inspector(writer.store)
    found = inspector.checkpoints()

    first = [inspector.damages(view) for view in found]
    writer.backend.delete(writer.blob("shared").name)  # type: ignore[arg-type]

    assert first == [(), ()]
    assert [inspector.damages(view) for view in found] == [(), ()]
    assert len(Inspector(writer.store).damages(found[0])) == 1


def test_a_checkpoint_without_the_files_of_a_query_is_damaged(writer: CheckpointWriter) -> None:
    writer.decide(1)
    view = one(writer, 1)
    assert view.cut is not None
    step, snapshot = next(iter(sorted(view.cut.snapshots.items())))
    bare = replace(
        view.cut,
        snapshots={step: replace(snapshot, batch=BatchId(4), state=())},
        identities={step: StepIdentity(is_query=True)},
    )

    (damage,) = Inspector(writer.store).damages(replace(view, cut=bare))

    assert damage == Damage(
        f"the state of step {step}", "no file was stored, and batch 4 was committed"
    )


@pytest.mark.parametrize("content", [b"", b"shareD", b"shared!", None])
def test_an_object_that_is_not_what_was_stored_is_named(
    writer: CheckpointWriter, content: bytes | None
) -> None:
    writer.decide(1)
    ref = writer.blob("shared")
    if content is None:
        writer.backend.delete(ObjectPath(ref.name))
    else:
        writer.backend.put(ObjectPath(ref.name), content)

    (damage,) = Inspector(writer.store).damages(one(writer, 1))

    assert damage.name == ref.name
    assert damage.problem


def test_what_retention_deletes_meanwhile_is_not_damaged(writer: CheckpointWriter) -> None:
    for number in (1, 2, 3):
        writer.decide(number)
    inspector = Inspector(writer.store)
    first, second, head = inspector.checkpoints()
    for view in (first, head):
        writer.backend.delete(writer.paths.manifest(view.id))
    writer.backend.delete(ObjectPath(writer.blob("orders 1").name))
    writer.backend.delete(ObjectPath(writer.blob("orders 2").name))
    writer.backend.delete(ObjectPath(writer.blob("orders 3").name))

    now, damages = inspector.verify(first)
    assert (now.discarded, damages) == (True, ())
    # Still there, so what it needs had to stay.
    now, (damage,) = inspector.verify(second)
    assert (now.discarded, damage.name) == (False, writer.blob("orders 2").name)
    # What the pipeline currently needs must not be deleted.
    now, (damage,) = inspector.verify(head)
    assert (now.discarded, damage.name) == (True, writer.paths.manifest(head.id))


def test_a_savepoint_may_only_go_when_it_was_given_up(writer: CheckpointWriter) -> None:
    writer.decide(1, CheckpointKind.SAVEPOINT, name="mine")
    writer.decide(2)
    writer.decide(3)
    view = one(writer, 1)
    writer.backend.delete(writer.paths.manifest(CheckpointId(1)))
    writer.backend.delete(ObjectPath(writer.blob("orders 1").name))

    assert len(Inspector(writer.store).verify(view)[1]) == 1
    writer.store.savepoints.drop(CheckpointId(1))
    assert Inspector(writer.store).verify(view)[1] == ()


def test_a_sound_checkpoint_is_verified_as_it_is(writer: CheckpointWriter) -> None:
    writer.decide(1)

    assert Inspector(writer.store).verify(one(writer, 1)) == (one(writer, 1), ())


def test_rows_that_wait_in_the_store_are_compared_and_others_are_left_to_the_sink(
    writer: CheckpointWriter,
) -> None:
    path = writer.paths.staged_file(ONE, TABLE, BatchId(1), "part")
    writer.backend.put(path, b"rows")
    here = BlobRef(path, 4, digest(b"rows"))
    there = BlobRef("_cutwater/elsewhere/part", 4, digest(b"rows"))
    staged = Committable(TABLE, ONE, BatchId(1), 1, (here, there))
    writer.decide(1, commit=False)
    view = one(writer, 1)
    assert view.cut is not None
    waiting = replace(view, cut=replace(view.cut, commit={TABLE: (staged,)}))

    assert Inspector(writer.store).damages(waiting) == ()
    writer.backend.put(path, b"rowS")
    (damage,) = Inspector(writer.store).damages(waiting)
    assert damage.name == path
    # Committed, they are the sink's.
    assert Inspector(writer.store).damages(replace(waiting, versions={TABLE: "1"})) == ()

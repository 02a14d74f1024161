"""The JSON of checkpoints and recoveries, byte for byte: of the commands, and of the API.

`checkpoint_bodies.txt` was recorded before both were built from the same fields. A change here is a
change of what programs read.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.checkpoint_writer import ORDERS, CheckpointWriter, attempt_report, step_report
from tests.unit.store.cuts import sample_recovery

from cutwater.cli.render import checkpoint_json, report_json, view_json
from cutwater.ids import CheckpointId, Generation, StepId
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.reporting.status import AlignmentStatus, CheckpointReport
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.maintenance.inspect import CheckpointView, Inspector
from cutwater.store.records.reports import AttemptStatus
from cutwater.views.build import attempt_of, checkpoint_of, recovery_of, subtask_of, without_steps
from cutwater.views.fields import recovery_fields

RECORDED = Path(__file__).with_name("checkpoint_bodies.txt")
STEPS = ("orders", "totals")
ALIGNMENTS = {"totals": AlignmentStatus(("0:orders",), ("1:orders",), 5, 6, 7)}


@pytest.fixture
def views() -> list[CheckpointView]:
    """Checkpoints of every kind, failed and pending attempts, a deleted one and a damaged one."""
    writer = CheckpointWriter(MemoryBackend())
    writer.decide(1)
    writer.decide(2, CheckpointKind.SAVEPOINT, name="before")
    writer.attempt(3)
    failed = attempt_report(3, status=AttemptStatus.FAILED, failure="the deadline passed")
    writer.store.reports.write(failed)
    writer.decide(4, in_flight=True, rows=3)
    writer.decide(5, CheckpointKind.FULL, commit=False)
    writer.decide(6, CheckpointKind.REWIND, origin=2)
    writer.decide(7)
    writer.attempt(8)
    writer.store.reports.write(attempt_report(1, committed_ms=None))
    writer.store.reports.write(attempt_report(2, name="before"))
    writer.store.reports.write(attempt_report(4, unaligned=True, in_flight_bytes=30))
    writer.backend.delete(writer.paths.manifest(CheckpointId(1)))
    writer.backend.put(writer.paths.manifest(CheckpointId(5)), b"damaged")
    # The store's own sentences are replaced: they may be reworded.
    return [
        replace(
            view,
            problem=view.problem and "the manifest is damaged",
            failure=view.failure and "the attempt failed",
        )
        for view in Inspector(writer.store, True).checkpoints(everything=True)
    ]


def attempts() -> Iterator[CheckpointReport]:
    steps = {ORDERS: step_report(alignment_ms=7, rows=42)}
    for number, (status, kind) in enumerate(
        (
            ("IN_PROGRESS", "CHECKPOINT"),
            ("COMPLETED", "FULL"),
            ("COMPLETED", "SAVEPOINT"),
            ("FAILED", "CHECKPOINT"),
        ),
        start=1,
    ):
        yield CheckpointReport(
            CheckpointId(number),
            status,
            250,
            kind,
            unaligned=kind == "CHECKPOINT",
            uploaded_bytes=11,
            state_bytes=22,
            in_flight_bytes=33,
            commit_point=kind != "FULL",
            failure="a step declined" if status == "FAILED" else "",
            started_at_ms=1_700_000_000_000,
            name="before" if kind == "SAVEPOINT" else None,
            committed_ms=300 if kind == "SAVEPOINT" else None,
            steps=steps,
            generation=Generation(3),
        )


def bodies(views: list[CheckpointView]) -> Iterator[str]:
    def plain(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    for view in views:
        yield f"cli stored {plain(view_json(view))}"
        detail = checkpoint_of(view, "memory://manifests")
        yield f"api stored {detail.model_dump_json(by_alias=True)}"
        yield f"api listed {without_steps(detail).model_dump_json(by_alias=True)}"
        for task in detail.tasks.values():
            yield f"api step {subtask_of(task).model_dump_json(by_alias=True)}"
    for attempt in attempts():
        yield f"cli live {plain(checkpoint_json(attempt))}"
        for alignments in ({}, ALIGNMENTS):
            made = attempt_of(attempt, STEPS, alignments)
            yield f"api live {made.model_dump_json(by_alias=True)}"
    for kind in (CheckpointKind.CHECKPOINT, CheckpointKind.FULL, CheckpointKind.SAVEPOINT):
        for report in (
            attempt_report(1, steps={StepId("totals"): step_report(rows=42)}),
            attempt_report(2, unaligned=True, name="before", committed_ms=None, steps={}),
            attempt_report(3, status=AttemptStatus.FAILED, failure="the deadline passed"),
        ):
            yield f"cli taken {plain(report_json(report, kind))}"
    yield f"cli recovery {plain(recovery_fields(sample_recovery()))}"
    yield f"api recovery {recovery_of(sample_recovery()).model_dump_json(by_alias=True)}"


def test_bodies_are_what_they_have_always_been(views: list[CheckpointView]) -> None:
    assert list(bodies(views)) == RECORDED.read_text(encoding="utf-8").splitlines()

"""A rewind that is interrupted anywhere is finished by the next recovery, or was never made."""

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operations.crashing_pipeline import (
    Crashed,
    CrashPoint,
    check_exactly_once,
    position,
    start_pipeline,
)

from cutwater.operations.offline_pipeline import candidates


@given(
    points=st.lists(st.booleans(), min_size=1, max_size=6),
    deaths=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 9), st.booleans(), st.booleans()),
        min_size=1,
        max_size=6,
    ),
)
def test_a_rewind_interrupted_anywhere_is_finished_or_was_never_made(
    points: list[bool], deaths: list[tuple[int, int, bool, bool]]
) -> None:
    pipeline = start_pipeline(points)
    for choice, left, after, recovers in deaths:
        before = pipeline.opened().log.read()
        pipeline.backend.crash_point = CrashPoint(left, after)
        target = None
        try:
            target = pipeline.rewind(choice)
        except Crashed:
            found = candidates(pipeline.opened(), before)
            target = found[choice % len(found)].decision
        pipeline.backend.crash_point = CrashPoint()
        now = pipeline.opened().log.read()
        if now.decisions != before.decisions:
            head = now.head
            assert head is not None
            assert target is not None
            assert head.origin == target.slot
        if recovers:
            check_exactly_once(pipeline, pipeline.recover())

    restored = pipeline.recover()

    check_exactly_once(pipeline, restored)
    head = pipeline.opened().log.read().head
    assert head is not None
    assert restored.cut == pipeline.opened().manifests.read(head.checkpoint_id)
    assert not head.commit_point or head.slot in pipeline.opened().commits.slots()


@given(points=st.lists(st.booleans(), min_size=2, max_size=6), choice=st.integers(0, 20))
def test_sinks_that_are_left_never_lose_a_row(points: list[bool], choice: int) -> None:
    pipeline = start_pipeline(points)
    before = {sink: table.versions[-1] for sink, table in pipeline.tables.items()}

    target = pipeline.rewind(choice, leave_sinks=True)
    restored = pipeline.recover()

    assert target is not None
    assert {sink: table.versions[-1] for sink, table in pipeline.tables.items()} == before
    assert position(restored.cut) == target.checkpoint_id * 3

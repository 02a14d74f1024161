"""A driver that finds another process in its place ends as fenced, wherever it finds it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest
from tests.unit.operations.crashing_pipeline import (
    SINKS,
    CrashingBackend,
    CrashingPipeline,
    VersionedTable,
    start_pipeline,
)

from cutwater.config.options import RestartConfig
from cutwater.errors import CutwaterError, Fenced, RunError, Superseded, Unavailable
from cutwater.ids import Generation, Slot, StepId
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Version
from cutwater.protocol.decisions import Claim
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.run_state import RunTrigger
from cutwater.runtime.context import RunContext
from cutwater.runtime.outcome import End, Outcome
from cutwater.runtime.supervisor import Supervisor, find_fencing_error
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.lease import Lease

REFUSED = Superseded(SINKS[0], Slot(4), Slot(5))


def claim(pipeline: CrashingPipeline, nonce: str) -> Claim:
    log = pipeline.opened().log.read()
    entry = Claim(Slot(log.last_slot + 1), Generation(log.generation + 1), nonce)
    pipeline.opened().log.create(entry)
    return entry


class TakenBack(VersionedTable):
    """A table that a successor has acted on, perhaps just now."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _act(self, permit: CommitPermit, rows: tuple[int, ...]) -> Version:
        del rows
        self.meanwhile()
        raise Superseded(self.name, permit.slot, Slot(permit.slot + 2))


def supervisor(pipeline: CrashingPipeline, scratch: Path) -> Supervisor:
    context = RunContext(
        plan=cast(Any, SimpleNamespace(pipeline="p")),
        engine=cast(Any, None),
        store=pipeline.opened(),
        sinks=pipeline.sinks,
        options=CheckpointOptions(),
        bound=cast(Any, None),
        scratch=scratch,
        targets=pipeline.targets,
    )
    return Supervisor(context, RestartConfig(), Lease("here", 1, "ours", 0))


def uncommitted() -> CrashingPipeline:
    """A pipeline whose last decision no sink may have acted on."""
    pipeline = start_pipeline([False, False])
    store = pipeline.opened()
    pipeline.backend.delete(PipelinePaths(store.pipeline).committed(store.log.read().last_slot))
    for sink in SINKS:
        pipeline.tables[sink] = TakenBack(pipeline.backend, sink)
    return pipeline


def test_a_pipeline_that_goes_on_is_not_stopping_any_more_unless_it_is_stopped_again(
    tmp_path: Path,
) -> None:
    one = supervisor(start_pipeline([False]), tmp_path)
    states = []
    one._move(RunTrigger.RUN)
    for _ in range(2):
        one._move(RunTrigger.STOP)
        one._resume()
        states.append(one.status().state)
        one.stop(checkpoint=True)

    assert states == ["RUNNING", "STOPPING"]


@pytest.mark.parametrize("successor", [True, False])
def test_a_recovery_that_a_sink_refuses_is_fenced_if_the_log_shows_a_successor(
    tmp_path: Path, successor: bool
) -> None:
    pipeline = uncommitted()
    taken = pipeline.tables[SINKS[0]]
    assert isinstance(taken, TakenBack)
    if successor:
        taken.meanwhile = lambda: claim(pipeline, "theirs")

    with pytest.raises(CutwaterError) as ended:
        supervisor(pipeline, tmp_path).run()

    if successor:
        assert isinstance(ended.value, Fenced)
        assert (ended.value.generation, ended.value.newer) == (2, 3)
        assert isinstance(ended.value.__cause__, Superseded)
    else:
        assert isinstance(ended.value, Superseded)
        assert (ended.value.sink, ended.value.slot, ended.value.newer) == (SINKS[0], 3, 5)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(End.FENCED, error=REFUSED, detail="a commit was refused"),
        Outcome(End.FENCED, detail="the next slot is taken"),
        Outcome(End.FAILED, StepId("numbers"), REFUSED),
        Outcome(End.FAILED, StepId("numbers"), FileNotFoundError("scratch")),
    ],
)
def test_whatever_a_driver_met_the_log_says_that_it_was_fenced(outcome: Outcome) -> None:
    pipeline = start_pipeline([False])
    ours = claim(pipeline, "ours")
    never_written = replace(claim(pipeline, "theirs"), nonce="never written")
    claim(pipeline, "another's")

    fenced = find_fencing_error(outcome, pipeline.opened(), [ours, never_written])

    assert isinstance(fenced, Fenced)
    assert (fenced.generation, fenced.newer) == (2, 4)
    assert fenced.__cause__ is outcome.error


def test_without_a_newer_claim_the_original_error_is_reported() -> None:
    pipeline = start_pipeline([False])
    ours = claim(pipeline, "ours")

    def told(outcome: Outcome) -> BaseException | None:
        return find_fencing_error(outcome, pipeline.opened(), [ours])

    assert told(Outcome(End.FENCED, error=REFUSED)) is REFUSED
    assert told(Outcome(End.FAILED, StepId("numbers"), REFUSED)) is None
    assert isinstance(told(Outcome(End.FENCED, detail="the slot is taken")), RunError)
    assert told(Outcome(End.STOPPED)) is None


def test_a_log_that_cannot_be_read_now_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Away(CrashingBackend):
        def get(self, path: ObjectPath) -> bytes:
            raise Unavailable(path, "away")

        def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> Never:
            raise Unavailable(after or prefix, "away")

    pipeline = start_pipeline([False])
    ours, store = claim(pipeline, "ours"), pipeline.opened()
    pipeline.backend.__class__ = Away

    assert find_fencing_error(Outcome(End.FENCED, error=REFUSED), store, [ours]) is REFUSED
    assert "it is unknown whether another process runs the pipeline" in caplog.text

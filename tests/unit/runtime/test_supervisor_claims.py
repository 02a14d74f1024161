"""A claim whose process has died: it fences the one that runs, and must not leave it down.

A claim is a create that an object store may carry out after its sender is dead. Recovery, log,
lease and heartbeat are real; the generations between them only say how they ended.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.store.cuts import PIPELINE

from cutwater.config.options import RestartConfig
from cutwater.errors import Fenced
from cutwater.ids import Generation, Slot
from cutwater.protocol.decisions import Claim
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.recovery import Restore
from cutwater.runtime import supervisor
from cutwater.runtime.context import RunContext
from cutwater.runtime.outcome import End, Outcome
from cutwater.runtime.supervisor import Supervisor
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records import lease as lease_module
from cutwater.store.records.lease import Lease, Leases, claim_nonce, take_lease

HERE = socket.gethostname()
ONE, TWO, THREE = Generation(1), Generation(2), Generation(3)


class LateBackend(MemoryBackend):
    """Carries out a create of another process right before the next one of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Callable[[], object]] = []

    def create(self, path: ObjectPath, data: bytes) -> bool:
        if self.late and "/log/" in path:
            self.late.pop()()
        return super().create(path, data)


@pytest.fixture
def backend() -> LateBackend:
    return LateBackend()


@pytest.fixture
def store(backend: LateBackend) -> PipelineStore:
    return PipelineStore.of(backend, PIPELINE)


@pytest.fixture
def context(store: PipelineStore, tmp_path: Path) -> RunContext:
    return RunContext(
        plan=cast(Any, SimpleNamespace(pipeline="orders")),
        engine=cast(Any, None),
        store=store,
        sinks={},
        options=CheckpointOptions(),
        bound=cast(Any, None),
        scratch=tmp_path,
    )


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], Outcome]]:
    """How the generations end, by number; one without an entry finishes."""
    found: dict[int, Callable[[], Outcome]] = {}

    class Stood:
        def __init__(self, _: object, restore: Restore, *__: object) -> None:
            self.number = restore.generation
            self.blocked = ""
            self.built = SimpleNamespace(steps={}, change=None)

        def ask_to_stop(self, *_: object) -> None:
            pass

        def run(self) -> Outcome:
            return found.get(self.number, lambda: Outcome(End.FINISHED))()

    monkeypatch.setattr(supervisor, "Generation", Stood)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "BEAT_MS", 20)
    monkeypatch.setattr(lease_module, "_GONE", set())
    monkeypatch.setattr(lease_module, "STALE_MS", 200)


def dead_process() -> int:
    """The number of a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def lease(host: str = HERE, process: int | None = None, **given: Any) -> Lease:  # noqa: ANN401
    number = dead_process() if process is None else process
    return Lease(host, number, "theirs", int(time.time() * 1000), **given)


def claim(store: PipelineStore, slot: int, generation: Generation, nonce: str = "") -> None:
    """Write a claim of that other process, through a log of its own."""
    theirs = PipelineStore.of(store.backend, PIPELINE)
    theirs.log.create(Claim(Slot(slot), generation, nonce or claim_nonce("theirs")))


def fenced_by(store: PipelineStore, theirs: Lease, slot: int = 2) -> Callable[[], Outcome]:
    """End a generation because that process has taken the lease and claimed."""

    def end() -> Outcome:
        Leases(store.backend, PIPELINE).beat(theirs)
        claim(store, slot, TWO)
        return Outcome(End.FENCED, detail="another process has claimed the pipeline")

    return end


def ours(backend: LateBackend) -> Lease:
    return take_lease(backend, PIPELINE, "orders", takeover=False)


def run(context: RunContext, own: Lease) -> int:
    """Run, and return the generation that finished."""
    result = Supervisor(context, RestartConfig(strategy="none"), own).run()
    assert result.finished
    return int(context.store.log.read().generation)


@pytest.mark.usefixtures("ends")
def test_a_claim_that_a_dead_predecessor_sent_does_not_keep_a_start_down(
    backend: LateBackend, store: PipelineStore, context: RunContext
) -> None:
    """It was killed while its claim was on its way; the next process claims the same slot."""
    Leases(backend, PIPELINE).beat(lease())
    own = ours(backend)
    backend.late.append(lambda: claim(store, 1, ONE))

    assert run(context, own) == TWO


@pytest.mark.parametrize("state", ["died", "ended by itself"])
def test_a_claim_of_a_dead_predecessor_that_fences_a_running_process_is_passed_over(
    backend: LateBackend,
    store: PipelineStore,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
    state: str,
) -> None:
    """The lease is ours, and the claim's process is the one that had it before."""
    Leases(backend, PIPELINE).beat(lease(released=state == "ended by itself"))
    own = ours(backend)

    def end() -> Outcome:
        claim(store, 2, TWO)
        return Outcome(End.FENCED, detail="another process has claimed the pipeline")

    ends[1] = end

    assert run(context, own) == THREE


def test_a_process_that_took_over_and_died_is_succeeded_by_the_one_it_fenced(
    backend: LateBackend,
    store: PipelineStore,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
) -> None:
    own = ours(backend)
    ends[1] = fenced_by(store, lease())

    assert run(context, own) == THREE

    left = Leases(backend, PIPELINE).read()
    assert left is not None
    assert (left.nonce, left.released) == (own.nonce, True)


def test_a_process_elsewhere_that_shows_no_sign_of_life_is_succeeded(
    backend: LateBackend,
    store: PipelineStore,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
) -> None:
    own = ours(backend)
    ends[1] = fenced_by(store, lease("elsewhere", 7))

    assert run(context, own) == THREE


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(lease(process=os.getppid()), id="alive here"),
        pytest.param(lease("elsewhere", 7, released=True), id="ended by itself"),
    ],
)
def test_a_process_that_lives_or_was_stopped_keeps_the_pipeline(
    backend: LateBackend,
    store: PipelineStore,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
    theirs: Lease,
) -> None:
    """A user who stops the process that took over does not want the old one to go on."""
    own = ours(backend)
    ends[1] = fenced_by(store, theirs)

    with pytest.raises(Fenced):
        run(context, own)

    assert store.log.read().generation == TWO
    assert Leases(backend, PIPELINE).read() == theirs


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(lease("elsewhere", 7), id="on another machine"),
        # Containers that have a host name in common have processes of their own.
        pytest.param(lease(process=os.getpid()), id="with our name and number"),
        pytest.param(lease(), id="with our name and a number that is not here"),
    ],
)
def test_a_process_elsewhere_that_shows_signs_of_life_keeps_the_pipeline(
    backend: LateBackend,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
    monkeypatch: pytest.MonkeyPatch,
    theirs: Lease,
) -> None:
    own, leases = ours(backend), Leases(backend, PIPELINE)
    ends[1] = fenced_by(context.store, theirs)
    real = Leases.read

    def beating(self: Leases) -> Lease | None:
        found = real(self)
        if found is not None and found.nonce == "theirs":
            leases.beat(replace(theirs, beat_at_ms=found.beat_at_ms + 1))
        return found

    monkeypatch.setattr(Leases, "read", beating)

    with pytest.raises(Fenced):
        run(context, own)


@pytest.mark.parametrize(
    "nonce",
    ["of an older Cutwater, a rewind or a prune", claim_nonce("?")],
    ids=["without a lease", "with a lease that is not known"],
)
def test_a_claim_whose_process_is_not_known_keeps_the_pipeline(
    backend: LateBackend,
    store: PipelineStore,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
    nonce: str,
) -> None:
    own = ours(backend)

    def end() -> Outcome:
        claim(store, 2, TWO, nonce)
        return Outcome(End.FENCED, detail="another process has claimed the pipeline")

    ends[1] = end

    with pytest.raises(Fenced):
        run(context, own)


def test_a_process_that_was_asked_to_stop_does_not_go_on_after_a_dead_claim(
    backend: LateBackend,
    store: PipelineStore,
    context: RunContext,
    ends: dict[int, Callable[[], Outcome]],
) -> None:
    own = ours(backend)
    running = Supervisor(context, RestartConfig(strategy="none"), own)

    def end() -> Outcome:
        running.stop(checkpoint=False)
        return fenced_by(store, lease())()

    ends[1] = end

    with pytest.raises(Fenced):
        running.run()

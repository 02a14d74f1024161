"""A run without Spark: a real store, a real plan, and numbers that a test sets.

It writes checkpoints to the store as a driver does: attempt, manifest, decision, commit record,
report. `held` keeps a checkpoint in progress while a test reads the API.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cli.offline_store import OfflineStore
from tests.unit.store.checkpoint_writer import (
    ONE,
    ORDERS,
    TABLE,
    TOTALS,
    attempt_report,
    step_report,
)
from tests.unit.store.cuts import PIPELINE

from cutwater import Pipeline
from cutwater.clock import wall_ms
from cutwater.errors import ConfigError, RequestFailed
from cutwater.ids import CheckpointId
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.reporting.status import (
    AlignmentStatus,
    BarrierAt,
    ChannelStatus,
    CheckpointReport,
    PartitionLag,
    RunResult,
    RunStatus,
    StepStatus,
)
from cutwater.server.pipeline_view import Live, PipelineView
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.reports import AttemptStatus
from cutwater.store.records.targets import SinkTargets, StoredTarget

HELD_S = 240.0
"""The max time for which a checkpoint is held: a test may send several requests meanwhile."""

ALIGNING = AlignmentStatus(("0:orders",), ("1:refunds",), 2048, 512, 1024)
"""How the inputs of a step meet the barrier of a checkpoint that is held."""

TARGETS: SinkTargets = {TABLE: StoredTarget("delta", "file:///tables/totals")}


class UnopenedTarget:
    """A sink's target that is never opened."""

    format = "delta"
    accepts = frozenset({"append"})

    def describe(self) -> str:
        return "tables/totals"


def make_plan() -> PhysicalPlan:
    """Plan the pipeline whose checkpoints `CheckpointWriter` writes: orders, totals and a table."""
    pipeline = Pipeline("orders")

    @pipeline.source(chain=False)
    def orders(spark: object) -> object:
        return spark

    @pipeline.step
    def totals(orders: object) -> object:
        return orders

    pipeline.sink("table", UnopenedTarget(), of=totals)
    return plan(pipeline)


class SparklessRun:
    """The run, and every value that a test may set."""

    def __init__(self, directory: Path) -> None:
        self.stored = OfflineStore(directory)
        self.stored.writer.store.targets.record(ONE, TARGETS)
        self.plan = make_plan()
        self.state = "RUNNING"
        self.detail = ""
        self.late_rows = 0
        self.lag: tuple[PartitionLag, ...] = ()
        self.failed = 0
        self.restarts = 0
        self.backlog = 3
        self.barriers = {"orders": BarrierAt.NOWHERE, "totals": BarrierAt.NOWHERE}
        self.alignments: dict[str, AlignmentStatus] = {}
        self.rate = 1234.5
        self.stopped_with: tuple[str | None, bool] | None = None
        self.reports: list[CheckpointReport] = []
        self._open = threading.Event()
        self._open.set()
        self._over = threading.Event()
        self._lock = threading.Lock()

    def served(self, hint: str = "the token is in a file") -> PipelineView:
        store = PipelineStore.of(self.stored.backend, PIPELINE)
        return PipelineView(
            "orders", store, Live(self, self.plan, CheckpointOptions(), TARGETS), hint
        )

    # -- what a run does

    def status(self) -> RunStatus:
        steps = tuple(
            StepStatus(
                name,
                kind,
                7,
                12_345,
                self.rate,
                False,
                mark,
                self.late_rows,
                self.barriers[name],
                self.alignments.get(name),
                self.lag if name == "orders" else (),
            )
            for name, kind, mark in (("orders", "query", wall_ms()), ("totals", "query", wall_ms()))
        )
        with self._lock:
            reports = tuple(self.reports[-20:])
        return RunStatus(
            "orders",
            1,
            self.state,
            steps,
            (ChannelStatus("orders", "totals", self.backlog, 4096 * self.backlog),),
            reports,
            self.restarts,
            self.detail,
            None,
            sum(report.status == "COMPLETED" for report in reports),
            self.failed,
        )

    def checkpoint(
        self,
        timeout_s: float | None = None,  # noqa: ARG002
        *,
        full: bool = False,
    ) -> CheckpointReport:
        return self._take(CheckpointKind.FULL if full else CheckpointKind.CHECKPOINT, None)

    def savepoint(
        self,
        name: str,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> CheckpointReport:
        if any(report.name == name for report in self.reports):
            raise ConfigError("savepoint name", f"there is a savepoint {name} already")
        return self._take(CheckpointKind.SAVEPOINT, name)

    def abort_checkpoint(
        self,
        reason: str,
        checkpoint_id: int | None = None,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> CheckpointReport:
        pending = [report for report in self.reports if report.status == "IN_PROGRESS"]
        if not pending or checkpoint_id not in {None, pending[0].id}:
            raise RequestFailed("nothing was aborted: no such checkpoint is pending.")
        failure = f"it was aborted on request ({reason})"
        aborted = self._change(pending[0].id, status="FAILED", failure=failure, duration_ms=40)
        self._open.set()
        return aborted

    def stop(
        self, *, checkpoint: bool = True, savepoint: str | None = None, drain: bool = False
    ) -> None:
        assert checkpoint
        self.stopped_with = (savepoint, drain)
        self._take(CheckpointKind.SAVEPOINT if savepoint else CheckpointKind.CHECKPOINT, savepoint)
        self.state = "FINISHED"
        self._over.set()

    def wait(self, timeout_s: float | None = None) -> RunResult | None:
        if not self._over.wait(timeout_s):
            return None
        return RunResult("orders", False, len(self.reports), 0, None)

    # -- what a test does

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep checkpoints that begin meanwhile from being decided."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def fail(self, reason: str) -> int:
        """Let an attempt fail."""
        number = self._begin(CheckpointKind.CHECKPOINT, None)
        self._change(number, status="FAILED", failure=reason, duration_ms=40)
        self.failed += 1
        self.stored.writer.attempt(number)
        report = attempt_report(number, status=AttemptStatus.FAILED, failure=reason)
        self.stored.writer.store.reports.write(report)
        return number

    def _begin(self, kind: CheckpointKind, name: str | None) -> int:
        with self._lock:
            number = len(self.reports) + 1
            self.reports.append(
                CheckpointReport(
                    CheckpointId(number),
                    "IN_PROGRESS",
                    5,
                    kind.name,
                    started_at_ms=wall_ms(),
                    name=name,
                    generation=ONE,
                )
            )
        return number

    def _change(self, number: int, **changes: object) -> CheckpointReport:
        with self._lock:
            changed = replace(self.reports[number - 1], **changes)  # type: ignore[arg-type]
            self.reports[number - 1] = changed
            return changed

    def _aborted(self, number: int) -> CheckpointReport:
        report = self.reports[number - 1]
        self.failed += 1
        self.barriers = {"orders": BarrierAt.NOWHERE, "totals": BarrierAt.NOWHERE}
        self.alignments = {}
        self.stored.writer.attempt(number)
        failed = attempt_report(number, status=AttemptStatus.FAILED, failure=report.failure)
        self.stored.writer.store.reports.write(failed)
        return report

    def _take(self, kind: CheckpointKind, name: str | None) -> CheckpointReport:
        number = self._begin(kind, name)
        self.barriers = {"orders": BarrierAt.ACKNOWLEDGED, "totals": BarrierAt.ALIGNING}
        self.alignments = {"totals": ALIGNING}
        steps = {ORDERS: step_report(start_delay_ms=3, sync_ms=2, async_ms=30)}
        self._change(number, steps=steps)
        assert self._open.wait(HELD_S)
        if self.reports[number - 1].status == "FAILED":
            return self._aborted(number)
        steps[TOTALS] = step_report(start_delay_ms=12, alignment_ms=25, async_ms=40)
        self.stored.writer.decide(number, kind, name=name)
        made = attempt_report(number, name=name, steps=steps, started_at_ms=wall_ms())
        self.stored.writer.store.reports.write(made)
        self.barriers = {"orders": BarrierAt.NOWHERE, "totals": BarrierAt.NOWHERE}
        self.alignments = {}
        return self._change(
            number,
            status="COMPLETED",
            duration_ms=250,
            committed_ms=300,
            commit_point=True,
            uploaded_bytes=2048,
            state_bytes=4096,
            steps=steps,
        )

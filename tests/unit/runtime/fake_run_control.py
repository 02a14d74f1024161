"""The control of a run without Spark: it serves every request at once, and records it."""

import threading
from dataclasses import dataclass, field

from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.runtime.reporting.status import CheckpointReport, RunStatus

SECOND_S = 10.0


@dataclass
class FakeRunControl:
    """Serves each request at once, unless a test makes it fail, wait or raise.

    Attributes:
        outcome: The status of its checkpoints; None for a checkpoint whose result is never known.
        state: The state of the pipeline.
        requested: The requests it received, in order.
    """

    outcome: str | None = "COMPLETED"
    state: str = "RUNNING"
    detail: str = ""
    error: Exception | None = None
    requested: list[CheckpointRequest | str] = field(default_factory=list)
    taken: list[CheckpointReport] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    may_proceed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Let requests proceed until a test holds them."""
        self.may_proceed.set()

    def checkpoint(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        self.requested.append(request)
        in_time = self.may_proceed.wait(timeout_s)
        if self.error is not None:
            raise self.error
        if self.outcome is None or not in_time:
            return None
        report = CheckpointReport(
            CheckpointId(len(self.taken) + 1),
            self.outcome,
            250,
            request.kind.name,
            uploaded_bytes=2048,
            state_bytes=2048,
            commit_point=True,
            failure="" if self.outcome == "COMPLETED" else "a step declined it",
            name=request.name,
            generation=Generation(1),
        )
        self.taken.append(report)
        return report

    def stop(self, *, checkpoint: bool) -> None:
        self.requested.append(f"stop {checkpoint}")
        self.checkpoint(CheckpointRequest(), SECOND_S)
        self.over.set()

    def stop_with(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        report = self.checkpoint(request, timeout_s)
        if report is not None and report.status == "COMPLETED":
            self.over.set()
        return report

    def abort_checkpoint(
        self,
        checkpoint_id: CheckpointId | None,
        reason: str,
        timeout_s: float | None,  # noqa: ARG002
    ) -> CheckpointReport | None:
        self.requested.append(f"abort {checkpoint_id}: {reason}")
        if self.error is not None:
            raise self.error
        if self.outcome is None:
            return None
        number = checkpoint_id or CheckpointId(len(self.taken) + 1)
        failure = f"it was aborted on request ({reason})"
        return CheckpointReport(number, "FAILED", 250, "CHECKPOINT", failure=failure)

    def wait_for_end(self, timeout_s: float | None) -> bool:
        return self.over.wait(timeout_s)

    def status(self) -> RunStatus:
        return RunStatus("orders", 1, self.state, checkpoints=tuple(self.taken), detail=self.detail)

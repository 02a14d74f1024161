"""A running pipeline without Spark: it takes what it is asked for, and remembers it."""

import threading
from dataclasses import dataclass, field

from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.runtime.reporting.status import CheckpointReport, RunStatus

SECOND_S = 10.0


@dataclass
class StandInOffice:
    """Does at once what it is asked for, unless told to fail, to be late or to break.

    Attributes:
        outcome: The status of the checkpoints it takes; None for one that is never known.
        state: How the pipeline is.
        asked: What it was asked for, in order.
    """

    outcome: str | None = "COMPLETED"
    state: str = "RUNNING"
    detail: str = ""
    error: Exception | None = None
    asked: list[CheckpointRequest | str] = field(default_factory=list)
    taken: list[CheckpointReport] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Let everything go on until somebody holds it."""
        self.may_go_on.set()

    def checkpoint(
        self, request: CheckpointRequest, timeout_s: float | None
    ) -> CheckpointReport | None:
        self.asked.append(request)
        in_time = self.may_go_on.wait(timeout_s)
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
        self.asked.append(f"stop {checkpoint}")
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
        self.asked.append(f"abort {checkpoint_id}: {reason}")
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

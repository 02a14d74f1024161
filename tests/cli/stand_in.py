"""A stand-in for `cutwater.run` that needs no Spark, so that the command can be watched alone.

Run as a program, it is `cutwater` with the stand-in: `python -m tests.cli.stand_in run FILE …`. The
environment variable CUTWATER_STAND_IN says how its runs go: `finish`, `forever`, `stubborn` (a stop
is heard and never done), `fail`, `fenced`, `held` or `restart`.
"""

import json
import os
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import cutwater.spark.session
from cutwater.cli.main import main
from cutwater.cli.output import say, say_json
from cutwater.config import CheckpointConfig, RestartConfig
from cutwater.errors import CutwaterError, Fenced, PipelineHeld, StepError
from cutwater.ids import Generation, PipelineId, StepId
from cutwater.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    store: Path
    scratch: Path | None = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    available_now: bool = False
    start_from: str = "latest"
    takeover: bool = False


@dataclass(frozen=True)
class StepStatus:
    name: str
    kind: str
    batch: int
    rows: int
    rows_per_second: float
    finished: bool
    watermark_ms: int | None


@dataclass(frozen=True)
class ChannelStatus:
    name: str
    reader: str
    messages: int
    size_bytes: int


@dataclass(frozen=True)
class CheckpointReport:
    id: int
    status: str
    duration_ms: int = 0
    kind: str = "CHECKPOINT"
    unaligned: bool = False
    uploaded_bytes: int = 0
    state_bytes: int = 0
    in_flight_bytes: int = 0
    commit_point: bool = True
    failure: str = ""


@dataclass(frozen=True)
class RunStatus:
    pipeline: str
    generation: int
    state: str
    steps: tuple[StepStatus, ...] = ()
    channels: tuple[ChannelStatus, ...] = ()
    checkpoints: tuple[CheckpointReport, ...] = ()
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True)
class RunResult:
    pipeline: str
    finished: bool
    checkpoints: int
    restarts: int
    last_checkpoint: int | None


COMPLETED = CheckpointReport(1, "COMPLETED", 250, uploaded_bytes=2048, state_bytes=4096)
FAILED = CheckpointReport(2, "FAILED", failure="step totals declined it")
NOT_ALIGNED = CheckpointReport(
    3, "COMPLETED", 61_000, unaligned=True, in_flight_bytes=512, commit_point=False
)
STEPS = (
    StepStatus("totals", "query", 7, 12_345, 1234.4, False, 0),
    StepStatus("table", "batch", -1, 0, 0.0, True, None),
)
CHANNELS = (ChannelStatus("totals", "table", 3, 5 * 1024 * 1024),)
FENCED = Fenced(PipelineId("p"), Generation(1), Generation(2))
HELD = PipelineHeld("orders", "elsewhere", 7, 2)
BROKEN = StepError(StepId("totals"), "orders.py:12", "division by zero")
ENDINGS: dict[str, CutwaterError] = {"fail": BROKEN, "fenced": FENCED, "held": HELD}


class StandInRun:
    """Ends as the environment says; a look at it takes a moment, as with a real one."""

    def __init__(self, name: str, story: str) -> None:
        self._name = name
        self._story = story
        self._looks = 0
        self._is_over = threading.Event()
        self._is_stopped = False

    def status(self) -> RunStatus:
        self._looks += 1
        reports = (COMPLETED, FAILED, NOT_ALIGNED)[: self._looks]
        restarted = self._story == "restart" and self._looks > 2
        return RunStatus(
            self._name,
            2 if restarted else 1,
            "RUNNING",
            STEPS,
            CHANNELS,
            reports,
            int(restarted),
            "worker lost" if restarted else "",
        )

    def stop(self, *, checkpoint: bool = True) -> None:
        assert checkpoint
        self._is_stopped = True
        if self._story != "stubborn":
            self._is_over.set()

    def kill(self) -> None:
        say_json({"type": "killed"})

    def wait(self, timeout_s: float | None = None) -> RunResult | None:
        if self._looks >= 4 and self._story in ENDINGS:
            raise ENDINGS[self._story]
        if self._looks >= 4 and self._story in {"finish", "restart"}:
            self._is_over.set()
        if not self._is_over.wait(timeout_s):
            return None
        return RunResult(self._name, not self._is_stopped, 2, 0, 3)


class StandInSession:
    def stop(self) -> None:
        say_json({"type": "session stopped"})


def start(pipeline: Pipeline, _spark: object, options: RunOptions) -> StandInRun:
    say(json.dumps({"type": "options", **asdict(options)}, default=str))
    return StandInRun(pipeline.name, os.environ["CUTWATER_STAND_IN"])


def replace(target: object, name: str, value: Callable[..., object]) -> None:
    setattr(target, name, value)


if __name__ == "__main__":
    module = types.ModuleType("cutwater.run")
    module.__dict__.update(RunOptions=RunOptions, start=start)
    sys.modules["cutwater.run"] = module
    replace(cutwater.spark.session, "embedded_session", lambda *_, **__: StandInSession())
    replace(cutwater.spark.session, "check_session", lambda _: ("it is a stand-in.",))
    main()

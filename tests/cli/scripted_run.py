"""Replaces `cutwater.run` by a run that needs no Spark and follows a script, to test the command.

`python -m tests.cli.scripted_run run FILE …` is the program `cutwater` with the scripted run. The
environment variable CUTWATER_SCRIPTED_RUN names the script: `finish`, `forever`, `stubborn` (a stop
is accepted and never carried out), `fail`, `fenced`, `held`, `restart`, `changed`, `limits`,
`unicode`, `unsaved` (a stop whose last checkpoint fails), `starting` (Spark never starts), or
`chatty`: until a stop, every status has something new, and each call is recorded in the file that
CUTWATER_SCRIPTED_RUN_LOOKS names.
"""

import json
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import replace as replace_
from pathlib import Path

import cutwater.run
import cutwater.spark.session.session
from cutwater.cli.main import main
from cutwater.cli.output import say, say_json
from cutwater.errors import CutwaterError, Fenced, PipelineHeld, StepError
from cutwater.ids import CheckpointId, Generation, PipelineId, StepId
from cutwater.pipeline.pipeline import Pipeline
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.evolution.mapping import Change, Fate, StepFate
from cutwater.run import RunOptions
from cutwater.runtime.reporting.status import (
    ChannelStatus,
    CheckpointReport,
    RunResult,
    RunStatus,
    StepStatus,
)

COMPLETED = CheckpointReport(
    CheckpointId(1),
    "COMPLETED",
    250,
    "CHECKPOINT",
    uploaded_bytes=2048,
    state_bytes=4096,
    commit_point=True,
)
FAILED = CheckpointReport(
    CheckpointId(2), "FAILED", 0, "CHECKPOINT", failure="step totals declined it"
)
NOT_ALIGNED = CheckpointReport(
    CheckpointId(3), "COMPLETED", 61_000, "CHECKPOINT", unaligned=True, in_flight_bytes=512
)
STEPS = (
    StepStatus("totals", "query", 7, 12_345, 1234.4, False, 0),
    StepStatus("table", "batch", -1, 0, 0.0, True, None),
)
CHANNELS = (ChannelStatus("totals", "table", 3, 5 * 1024 * 1024),)
CHANGED = Change(
    (
        StepFate(StepId("totals"), Fate.KEPT, ("no longer reads source orders",)),
        StepFate(StepId("big"), Fate.DROPPED),
    ),
    (),
    Cut(CheckpointId(1), Generation(1), CheckpointKind.CHECKPOINT, {}),
)
FENCED = Fenced(PipelineId("p"), Generation(1), Generation(2))
HELD = PipelineHeld("orders", "elsewhere", 7, 2)
BROKEN = StepError(StepId("totals"), "orders.py:12", "division by zero")
REASONS = {"restart": "worker lost", "unicode": "größe"}
ENDINGS: dict[str, CutwaterError] = {"fail": BROKEN, "fenced": FENCED, "held": HELD}


class ScriptedRun:
    """A run that follows the script that the environment names."""

    def __init__(self, name: str, story: str) -> None:
        self._name = name
        self._story = story
        self._looks = 0
        self._is_over = threading.Event()
        self._is_stopped = False
        self.change = CHANGED if story == "changed" else None

    def status(self) -> RunStatus:
        self._looks += 1
        reports = (COMPLETED, FAILED, NOT_ALIGNED)[: self._looks]
        restarted = self._story in REASONS and self._looks > 2
        if self._story == "chatty":
            self._note("x")
            reports = (replace_(COMPLETED, id=CheckpointId(self._looks)),)
            logging.getLogger("cutwater").warning("look %s", self._looks)
        return RunStatus(
            self._name,
            2 if restarted else 1,
            "RUNNING",
            STEPS,
            CHANNELS,
            reports,
            int(restarted),
            REASONS[self._story] if restarted else "",
        )

    def _note(self, text: str) -> None:
        with Path(os.environ["CUTWATER_SCRIPTED_RUN_LOOKS"]).open("a") as file:
            file.write(text)

    def stop(self, *, checkpoint: bool = True) -> None:
        assert checkpoint
        self._is_stopped = True
        if self._story == "chatty":
            self._note("stop")
        if self._story != "stubborn":
            self._is_over.set()

    def kill(self) -> None:
        say_json({"type": "killed"})

    def wait(self, timeout_s: float | None = None) -> RunResult | None:
        if self._looks >= 4 and self._story in ENDINGS:
            raise ENDINGS[self._story]
        if self._looks >= 4 and self._story in {*REASONS, "finish", "changed"}:
            self._is_over.set()
        if not self._is_over.wait(timeout_s):
            return None
        problem = {"problem": "the disk is full"} if self._story == "unsaved" else {}
        return RunResult(self._name, not self._is_stopped, 2, 0, CheckpointId(3), **problem)


class ScriptedSession:
    def stop(self) -> None:
        say_json({"type": "session stopped"})


def session(*_: object, **__: object) -> ScriptedSession:
    while os.environ["CUTWATER_SCRIPTED_RUN"] == "starting":
        time.sleep(0.1)
    return ScriptedSession()


def start(pipeline: Pipeline, _spark: object, options: RunOptions) -> ScriptedRun:
    say(json.dumps({"type": "options", **asdict(options)}, default=str))
    if os.environ["CUTWATER_SCRIPTED_RUN"] == "limits":
        say_json({"files": resource.getrlimit(resource.RLIMIT_NOFILE)})
    return ScriptedRun(pipeline.name, os.environ["CUTWATER_SCRIPTED_RUN"])


def replace(target: object, name: str, value: Callable[..., object]) -> None:
    setattr(target, name, value)


if __name__ == "__main__":
    replace(cutwater.run, "start", start)
    replace(cutwater.spark.session.session, "embedded_session", session)
    replace(cutwater.spark.session.session, "check_session", lambda _: ("it is a scripted run.",))
    main()

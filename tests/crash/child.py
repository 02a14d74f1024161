"""A driver in a process of its own, to be killed: runs what it is told by lines on its input.

    python -m tests.crash.child

Each line of its input is a `Task`; what happens is told by lines on its output. It can be asked to
kill itself at a named write, which is a moment that no parent would ever hit from outside. When its
input ends it ends at once, so that no driver outlives the tests.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.crash.pipelines import PIPELINES
from tests.crash.writes import SINK_WRITES, name_store_writes, wrap

from cutwater import CheckpointConfig, RestartConfig
from cutwater.errors import CutwaterError
from cutwater.protocol.commit import CommitSink
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import Claim, Decision
from cutwater.run import PipelineRun, RunOptions, start
from cutwater.runtime.channel import Channel
from cutwater.sinks.delta.early_batches import ShowingDeltaTable
from cutwater.sinks.delta.table import OpenDeltaTable
from cutwater.sinks.delta.time_travel import NO_TABLE
from cutwater.sinks.files.manifests import FileCommits
from cutwater.sinks.files.table import OpenFiles
from cutwater.sinks.kafka.topic import OpenKafkaTopic
from cutwater.sinks.kafka.transactions import Transactions
from cutwater.sinks.postgres.table import OpenPostgresTable
from cutwater.spark.session.session import embedded_session
from cutwater.store.records.codecs import Committed
from cutwater.store.records.commits import Commits
from cutwater.store.records.decision_log import DecisionLog
from cutwater.store.records.manifests import Manifests


class Voice:
    """What the parent hears: our own lines alone, and nothing of Java's, which has a stdout too."""

    file = 1

    @classmethod
    def keep(cls) -> None:
        """Let whatever else is printed go to stderr; what is started from now on has no hold."""
        cls.file = os.dup(1)
        os.dup2(2, 1)


def say(event: str, **facts: object) -> None:
    """Tell the parent, as one line in one write."""
    os.write(Voice.file, json.dumps({"event": event, **facts}).encode() + b"\n")


# -- dying at a named write


class Fate:
    """When this process kills itself: after how many writes of which name.

    Attributes:
        seen: All durable writes that it came to since it was told what to run, in order.
        recorded: Whether rows were committed and recorded since then.
    """

    def __init__(self) -> None:
        self.write = ""
        self.left = 0
        self.only_pauses = False
        self.cut = ""
        self.seen: dict[str, None] = {}
        self.recorded = False

    def changed(self, moment: str, write: str) -> None:
        """Note a durable write that is about to be made, or has been."""
        self.seen[write] = None
        self.reached(f"{moment} {write}")

    def reached(self, write: str) -> None:
        """Note a write that has just been made, and die if it was the one.

        An unaligned decision is a decision too; an empty one, before there were rows, is not.
        """
        if self.write and self.write in {write, write.removeprefix("unaligned ")}:
            self.left -= 1
            if self.left == 0:
                say("dying", write=write, writes=list(self.seen))
                ended_by = signal.SIGSTOP if self.only_pauses else signal.SIGKILL
                os.kill(os.getpid(), ended_by)


FATE = Fate()


def _after(owner: type, method: str, name: Callable[..., str]) -> None:
    """Make a method tell which write it has made, by what it was given and what it returned."""
    original = getattr(owner, method)

    @wraps(original)
    def written(self: object, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        result = original(self, *given, **named)
        FATE.reached(name(result, *given, **named))
        return result

    setattr(owner, method, written)


def _published(_: object, cut: Cut) -> str:
    """Tell a cut with new rows in it from one that was made before there were any."""
    waiting = [row for found in (cut.commit, cut.carried) for row in found.values()]
    is_new = any(
        committable.generation == cut.generation for staged in waiting for committable in staged
    )
    FATE.cut = "empty " if not is_new else "unaligned " if cut.in_flight_bytes else ""
    return f"{FATE.cut}manifest"


def _logged(_: object, entry: Claim | Decision) -> str:
    return "claim" if isinstance(entry, Claim) else f"{FATE.cut}decision"


def _committed(_: object, permit: object, committables: Sequence[object]) -> str:
    del permit
    return "commit" if committables else "empty commit"


def _acted(_: object, connection: object, command: CommitSink, *__: object) -> str:
    """Tell what was done in a transaction that is not committed yet."""
    del connection
    return "inside commit" if command.committables else "inside empty commit"


def _acted_together(_: object, acts: Sequence[tuple[object, CommitSink]]) -> str:
    return "commit" if any(act.committables for _, act in acts) else "empty commit"


def _recorded(_: object, committed: Committed) -> str:
    FATE.recorded = FATE.recorded or set(committed.versions.values()) != {NO_TABLE}
    return f"{FATE.cut}record"


def _shown(*_: object) -> str:
    """Tell a batch that is seen beside rows of a checkpoint from those before any."""
    return "later show" if FATE.recorded else "show"


def name_writes() -> None:
    """Give the durable writes names by which this process can be asked to die."""
    name_store_writes(FATE.changed, "{method} {kind}")
    for sink in (OpenDeltaTable, OpenFiles, OpenKafkaTopic):
        for method in SINK_WRITES:
            wrap(sink, method, lambda *_, name=method: f"{name} rows", FATE.changed)
        _after(sink, "stage", lambda staged, *_: "stage" if staged else "empty stage")
        _after(sink, "commit", _committed)
    for method in ("create", "create_write_transaction"):
        wrap(DeltaTable, method, lambda *_, name=method: f"{name} table", FATE.changed)
    wrap(FileCommits, "create", lambda *_: "file manifest", FATE.changed)
    wrap(FileCommits, "carry_out", lambda *_: "file moves", FATE.changed)
    wrap(OpenDeltaTable, "_write", lambda table, *_: f"write {table._writing.write}", FATE.changed)
    _after(Manifests, "publish", _published)
    _after(DecisionLog, "create", _logged)
    _after(ShowingDeltaTable, "show", _shown)
    for method in ("seal", "take_back"):
        _after(ShowingDeltaTable, method, lambda *_, method=method: method.replace("_", " "))
    wrap(OpenPostgresTable, "stage", lambda *_: "stage rows", FATE.changed)
    wrap(OpenPostgresTable, "act_together", lambda *_: "commit rows", FATE.changed)
    _after(OpenPostgresTable, "stage", lambda staged, *_: "stage" if staged else "empty stage")
    _after(OpenPostgresTable, "commit_once", _acted)
    _after(OpenPostgresTable, "act_together", _acted_together)
    _after(Transactions, "fence", lambda *_: "fence")
    _after(Transactions, "_send", lambda *_: "inside transaction")
    _after(Commits, "record", _recorded)
    _after(Channel, "append", lambda *_: "append")


# -- running


def follow(running: PipelineRun) -> None:
    """Tell of every checkpoint until the end."""
    told: set[int] = set()
    ended = None
    while ended is None:
        ended = running.wait(0.02)
        status = running.status()
        # A checkpoint before there are any rows shows nothing.
        event = "checkpoint" if all(step.rows for step in status.steps) else "empty checkpoint"
        for checkpoint in status.checkpoints:
            if checkpoint.status == "COMPLETED" and checkpoint.id not in told:
                told.add(checkpoint.id)
                say(event, id=checkpoint.id)
    say("ended", finished=ended.finished, writes=list(FATE.seen))


def run(spark: Any, task: dict[str, Any]) -> None:  # noqa: ANN401
    """Run one task to its end, whatever that is."""
    FATE.write, FATE.left = task["dies_at"]
    FATE.only_pauses = task["only_pauses"]
    FATE.seen.clear()
    FATE.recorded = False
    directory = Path(task["directory"])
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(**task["checkpoint"]),
        restart=RestartConfig(strategy="none"),
        takeover=task["takeover"],
        name=task["name"],
    )
    say("starting")
    try:
        pipeline = PIPELINES[task["pipeline"]](**task["parameters"])
        running = start(pipeline, spark, options)
        say("started", generation=running.status().generation, held_ms=running.lease.beat_at_ms)
        follow(running)
    except CutwaterError as error:
        facts = {name: value for name, value in vars(error).items() if name != "__notes__"}
        say("error", kind=type(error).__name__, message=str(error), facts=facts)


def main() -> None:
    """Start Spark, then run what comes."""
    Voice.keep()
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(line)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    name_writes()
    spark = embedded_session(sys.argv[1], app_name="cutwater-crash")
    say("ready")
    while True:
        run(spark, json.loads(tasks.get()))


if __name__ == "__main__":
    main()

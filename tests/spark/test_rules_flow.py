"""What flows through channels while a pipeline runs: batches, barriers, room, and silence.

The logs of the channels and the offset logs of the queries lie in scratch and are gone with their
generation, so they are read while it runs.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.spark.features import needs
from tests.spark.runs import DEADLINE_S, options, run, table, wait_until

from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.ids import BatchId
from cutwater.pipeline.nodes import StepKeywords
from cutwater.run import PipelineRun
from cutwater.runtime.channel_file import read_entries
from cutwater.runtime.output import ChannelOutput, Written
from cutwater.runtime.reporting.status import CheckpointReport, RunStatus
from cutwater.runtime.scratch import Scratch
from cutwater.sinks.base import Rows
from cutwater.spark.session.session import ship_by_value

ship_by_value([sys.modules[__name__]])

QUICK = CheckpointConfig(interval="300ms", min_pause="50ms", unaligned=False)
STOP_S = 20.0
"""Long on a busy machine, and less than the time after which a stop gives a step up."""


class Watch:
    """Reads what a generation writes into scratch, again and again, and once more at its end."""

    def __init__(self, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch the one generation below this directory, which is not removed while looked at."""
        self._scratch = scratch
        self._lock = threading.Lock()
        self.entries: dict[str, list[dict[str, object]]] = {}
        self.ends: dict[str, dict[int, list[dict[str, object]]]] = {}
        self.kept: dict[str, list[tuple[int, int]]] = {}
        """At each look, how many Events had come and how many files were there."""
        remove = Scratch.remove

        def looked_at_and_removed(found: Scratch) -> None:
            with self._lock:
                try:
                    self._look()
                finally:
                    remove(found)

        monkeypatch.setattr(Scratch, "remove", looked_at_and_removed)

    def until_end(self, running: PipelineRun) -> None:
        """Watch until the pipeline has come to its end."""
        deadline = time.monotonic() + DEADLINE_S
        while running.wait(0.05) is None:
            self.look()
            assert time.monotonic() < deadline, running.status()

    def look(self) -> None:
        """Read all channel logs and all offset logs that are there."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        for log in self._scratch.glob("*/g*/*/channel/log"):
            # A log only grows here: a thousand entries, the length of a segment, are not reached.
            found = read_entries(log)
            step = log.parts[-3]
            if len(found) > len(self.entries.get(step, ())):
                self.entries[step] = found
            files = len(list((log.parent / "data").iterdir()))
            self.kept.setdefault(step, []).append((len(self.events(step)), files))
        for file in self._scratch.glob("*/g*/*/query/offsets/[0-9]*"):
            ends = self.ends.setdefault(file.parts[-4], {})
            if int(file.name) in ends:
                continue
            # Spark deletes the oldest ones, which were read long before.
            with suppress(FileNotFoundError):
                lines = file.read_text().splitlines()[2:]
                if lines:
                    ends[int(file.name)] = [json.loads(line) for line in lines if line != "-"]

    def events(self, step: str) -> list[dict[str, object]]:
        return [entry for entry in self.entries.get(step, ()) if "event" in entry]

    def barriers(self, step: str) -> dict[int, int]:
        """Where each checkpoint's barrier went in the step's channel."""
        return {
            int(str(entry["barrier"])): int(str(entry["end"]))
            for entry in self.entries[step]
            if "barrier" in entry
        }

    def batch_ends(self, step: str) -> list[dict[str, int]]:
        """Up to where each batch of a query read each channel."""
        return [
            {
                str(line["channel"]): int(str(line["position"]))
                for line in lines
                if "channel" in line
            }
            for _, lines in sorted(self.ends[step].items())
        ]


def numbers(
    total: int, batch_max: int, rate: float | None = None, partitions: int = 1
) -> Callable[..., DataFrame]:
    def read(spark: SparkSession) -> DataFrame:
        return sources.sequence(
            spark, total=total, batch_max=batch_max, rate=rate, partitions=partitions
        )

    return read


def events_of(path: Path, name: str, rows: list[dict[str, object]]) -> None:
    """Let a file of JSON lines appear in a directory at once."""
    path.mkdir(exist_ok=True)
    hidden = path / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(path / name)


# -- barriers (F1, F6), and files that are no longer needed (F26)


def test_every_barrier_lies_between_two_batches_of_its_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline("aligned")
    pipeline.source(numbers(6000, 150, rate=1000.0), name="left", chain=False)
    pipeline.source(numbers(6000, 230, rate=1000.0), name="right", chain=False)

    @pipeline.step
    def both(left: DataFrame, right: DataFrame) -> DataFrame:
        return left.unionByName(right).dropDuplicates(["value"]).select("value")

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=both)
    watch = Watch(tmp_path / "scratch", monkeypatch)

    watch.until_end(pipeline.start(spark, options(tmp_path, checkpoint=QUICK)))

    lefts, rights = watch.barriers("left"), watch.barriers("right")
    places = [{"left": lefts[left], "right": rights[left]} for left in lefts.keys() & rights.keys()]
    reached = [{"left": 0, "right": 0}] + [
        {"left": 0, "right": 0, **ends} for ends in watch.batch_ends("both")
    ]
    passed = [place for place in places if _is_behind(place, reached[-1])]
    assert len(passed) > 3
    assert all(place in reached for place in passed), (passed, reached)
    # Dozens of Events; what was read of them goes while more of them come.
    for step in ("left", "right"):
        whole = len(watch.events(step))
        gone = [events - files for events, files in watch.kept[step] if events < whole]
        assert max(gone) > whole / 4, (gone, whole)
    assert table(tmp_path / "t", "value") == [(number,) for number in range(6000)]


def _is_behind(place: dict[str, int], last: dict[str, int]) -> bool:
    return all(place[text] <= last[text] for text in place)


# -- room (F17, F24, F25)


@pytest.mark.parametrize(
    "bound",
    [{"channel_messages": 1}, {"channel_bytes": "1B"}],
    ids=["one message", "less than one Event"],
)
@pytest.mark.parametrize("way", ["query", "batch"])
def test_a_reader_makes_room_by_reading(
    spark: SparkSession, tmp_path: Path, bound: dict[str, object], way: str
) -> None:
    # Each batch is read before the next one is due, so the reader is idle whenever one comes.
    pipeline = Pipeline("room")
    pipeline.source(numbers(800, 100, rate=400.0), name="numbers", chain=False)

    @pipeline.step
    def read(numbers: DataFrame) -> DataFrame:
        return (numbers.dropDuplicates(["value"]) if way == "query" else numbers).select("value")

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=read)
    checkpoint = CheckpointConfig(interval="10s", **bound)  # type: ignore[arg-type]

    result = run(pipeline, spark, options(tmp_path, checkpoint=checkpoint))

    assert result.finished
    assert table(tmp_path / "t", "value") == [(number,) for number in range(800)]


@pytest.mark.parametrize("waiting", ["numbers", "passed"], ids=["query", "batch"])
def test_a_stop_ends_a_wait_for_room(spark: SparkSession, tmp_path: Path, waiting: str) -> None:
    gate = tmp_path / "gate"
    pipeline = Pipeline("full")
    pipeline.source(numbers(100_000, 10), name="numbers", chain=False)
    if waiting == "passed":
        pipeline.step(lambda numbers: numbers.where("value >= 0"), name="passed")

    def wait_at_gate(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            while not gate.exists():
                threading.Event().wait(0.05)
            yield part

    # One task at a time, which leaves a core to the others.
    @pipeline.step(inputs=[waiting], partitions=1, max_batch="1B")
    def stuck(rows: DataFrame) -> DataFrame:
        return rows.select("value").mapInArrow(wait_at_gate, "value long")

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=stuck)
    checkpoint = CheckpointConfig(interval="1h", channel_messages=3)
    running = pipeline.start(spark, options(tmp_path, checkpoint=checkpoint))
    try:
        # The fourth Event was refused: the next batch is computed, and cannot be appended.
        wait_until(running, lambda status: backlog(status, waiting) == 3, "a full channel")
        began = time.monotonic()
        running.kill()
        ended = running.wait(DEADLINE_S)
        took_s = time.monotonic() - began
    finally:
        gate.write_text("open")

    assert ended is not None
    assert not ended.finished
    assert took_s < STOP_S


def backlog(status: RunStatus, channel: str) -> int:
    return max(one.messages for one in status.channels if one.name == channel)


# -- one action for each batch (F32)


def test_a_batch_is_one_spark_job_and_a_small_one_is_one_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline("jobs")
    pipeline.source(numbers(1000, 200, partitions=2), name="numbers", chain=False)

    @pipeline.step
    def passed(numbers: DataFrame) -> DataFrame:
        return numbers.where("value >= 0").select("value")

    @pipeline.step(partitions=2)
    def distinct(passed: DataFrame) -> DataFrame:
        return passed.dropDuplicates(["value"])

    for name, of in (("t", passed), ("u", distinct), ("v", distinct)):
        pipeline.sink(name, sinks.delta(str(tmp_path / name)), of=of)
    context, write = spark.sparkContext, ChannelOutput.write
    jobs: dict[str, list[int]] = {}
    files: dict[str, list[int]] = {}

    def jobs_of_this_thread() -> set[int]:
        context._jsc.sc().listenerBus().waitUntilEmpty()
        group = context.getLocalProperty("spark.jobGroup.id")
        return set(context.statusTracker().getJobIdsForGroup(group))

    def counted(self: ChannelOutput, rows: Rows, batch: BatchId) -> Written:
        before = jobs_of_this_thread()
        written = write(self, rows, batch)
        assert written.event is not None
        jobs.setdefault(self._channel.id, []).append(len(jobs_of_this_thread() - before))
        files.setdefault(self._channel.id, []).append(len(written.event.files))
        return written

    monkeypatch.setattr(ChannelOutput, "write", counted)
    result = run(pipeline, spark, options(tmp_path))

    assert result.finished
    assert jobs.keys() == {"numbers", "passed", "distinct"}
    assert {count for counts in jobs.values() for count in counts} == {1}, jobs
    # The first result of a query is written by as many tasks as there are: it may be large.
    assert files["numbers"] == [2, 1, 1, 1, 1]
    assert set(files["passed"]) == {1}, files
    for name in ("t", "u", "v"):
        assert table(tmp_path / name, "value") == [(number,) for number in range(1000)]


# -- silence (F23)


def test_an_idle_pipeline_runs_no_batches_and_keeps_no_files_of_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events_of(tmp_path / "in", "one", [{"value": number} for number in range(10)])
    pipeline = Pipeline("idle")

    @pipeline.source(chain=False)
    def lines(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("value long").json(str(tmp_path / "in"))

    @pipeline.step
    def counted(lines: DataFrame) -> DataFrame:
        return lines.dropDuplicates(["value"])

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=lambda counted: counted.select("*"))
    pipeline.sink("u", sinks.delta(str(tmp_path / "u")), of=lambda lines: lines.select("*"))
    checkpoint = CheckpointConfig(interval="200ms", min_pause="10ms")
    running = pipeline.start(spark, options(tmp_path, checkpoint=checkpoint))
    wait_until(
        running, lambda status: all(step.rows for step in status.steps), "ten rows everywhere"
    )
    running.checkpoint(60)
    quiet = running.status()
    watch = Watch(tmp_path / "scratch", monkeypatch)
    watch.look()
    before = {step: len(watch.events(step)) for step in watch.entries}
    first = quiet.checkpoints[-1].id

    later = wait_until(
        running,
        lambda status: any(
            checkpoint.id >= first + 25 and checkpoint.status == "COMPLETED"
            for checkpoint in status.checkpoints
        ),
        "more checkpoints than an empty batch would take",
    )
    watch.look()
    left = list((tmp_path / "scratch").glob("*/g*/*/channel/data/*"))
    running.stop()
    running.wait(DEADLINE_S)

    assert before["lines"] >= 1
    assert left == []
    assert {step.name: step.batch for step in later.steps} == {
        step.name: step.batch for step in quiet.steps
    }
    assert {step: len(watch.events(step)) for step in watch.entries} == before
    assert table(tmp_path / "t", "value") == [(number,) for number in range(10)]
    assert table(tmp_path / "u", "value") == [(number,) for number in range(10)]


def test_a_batch_without_rows_wakes_no_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline("sparse")
    pipeline.source(numbers(2000, 100), name="numbers", chain=False)

    @pipeline.step
    def few(numbers: DataFrame) -> DataFrame:
        return numbers.where("value % 1000 = 950").select("value")

    @pipeline.step
    def distinct(few: DataFrame) -> DataFrame:
        return few.dropDuplicates(["value"])

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=lambda few: few.select("value"))
    pipeline.sink("u", sinks.delta(str(tmp_path / "u")), of=distinct)
    watch = Watch(tmp_path / "scratch", monkeypatch)

    watch.until_end(
        pipeline.start(spark, options(tmp_path, checkpoint=CheckpointConfig(interval="5s")))
    )

    assert [event["rows"] for event in watch.events("few")] in ([1, 1], [2])
    assert table(tmp_path / "t", "value") == [(950,), (1950,)]
    assert table(tmp_path / "u", "value") == [(950,), (1950,)]


def test_an_idle_input_does_not_hold_up_a_busy_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("lopsided")
    pipeline.source(numbers(1_000_000, 100, rate=500.0), name="busy", chain=False)

    @pipeline.source(chain=False)
    def idle(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("value long").json(str(tmp_path / "in"))

    @pipeline.step
    def both(busy: DataFrame, idle: DataFrame) -> DataFrame:
        return busy.select("value").unionByName(idle).dropDuplicates(["value"])

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=both)
    running = pipeline.start(spark, options(tmp_path, checkpoint=QUICK))
    wait_until(running, lambda status: status.steps[-1].rows >= 500, "rows of the busy input")
    report = running.checkpoint(60)
    shown = table(tmp_path / "t", "value")
    running.kill()
    running.wait(DEADLINE_S)

    assert report.status == "COMPLETED"
    assert len(shown) >= 500
    assert shown == [(number,) for number in range(len(shown))]


@needs("transformWithState on rows")
def test_timers_of_processing_time_do_not_keep_a_pipeline_from_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("timers")
    pipeline.source(numbers(500, 100), name="numbers", chain=False)

    @pipeline.step(partitions=1)
    def timed(numbers: DataFrame) -> DataFrame:
        keyed = numbers.withColumn("key", F.col("value") % 3).groupBy("key")
        return keyed.transformWithState(
            statefulProcessor=Counting(),
            outputStructType="key long, rows long",
            outputMode="append",
            timeMode="processingTime",
        )

    pipeline.sink("t", sinks.delta(str(tmp_path / "t")), of=timed)

    result = run(pipeline, spark, options(tmp_path, available_now=True))

    assert result.finished
    assert sum(rows for _, rows in table(tmp_path / "t", "key", "rows")) == 500


class Counting(StatefulProcessor):
    """Counts the rows of each batch, and always has a timer that is an hour away."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401 - Spark's type
        rows: Iterator[Row],
        timerValues: Any,  # noqa: ANN401, N803 - Spark's name and type
    ) -> Iterator[Row]:
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
        yield Row(key=key[0], rows=len(list(rows)))

    def close(self) -> None:
        pass


# -- alignment, step by step


def of_different_patience(directory: Path) -> Pipeline:
    """Three steps that read one Event of many, and would read the next in an hour."""
    pipeline = Pipeline("patience")

    @pipeline.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=400, batch_max=50, partitions=1)

    def part(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("value")

    kinds: dict[str, StepKeywords] = {
        "eager": {},
        "patient": {"alignment_timeout": "1h"},
        "whole": {"unaligned": False},
    }
    for name, own in kinds.items():
        slow: StepKeywords = {"trigger": "1h", "max_batch": "1B", "inputs": ["numbers"], **own}
        slow["name"] = name
        pipeline.step(part, **slow)
        pipeline.sink(f"{name}_table", sinks.delta(str(directory / name)), of=name)
    return pipeline


def has_overtaken(status: RunStatus) -> bool:
    met = {step.name: step.alignment for step in status.steps}
    return all(found or name == "numbers" for name, found in met.items()) and any(
        found.recorded_bytes for found in met.values() if found
    )


def test_each_step_overtakes_by_its_own_options(spark: SparkSession, tmp_path: Path) -> None:
    config = CheckpointConfig(interval="1h", alignment_timeout="200ms", timeout="5s")
    given = options(tmp_path, checkpoint=config)
    running = of_different_patience(tmp_path).start(spark, given)
    wait_until(
        running,
        lambda status: (
            status.steps[0].rows == 400
            and all(channel.messages >= 7 for channel in status.channels)
        ),
        "seven Events in flight to each",
    )
    taken: list[CheckpointReport] = []
    asking = threading.Thread(target=lambda: taken.append(running.checkpoint(DEADLINE_S)))
    asking.start()
    status = wait_until(running, has_overtaken, "the eager step has overtaken")
    asking.join()
    running.kill()
    running.wait(DEADLINE_S)

    (report,) = taken
    # What each waits for, and what has been recorded, is shown while it is under way.
    met = {step.name: step.alignment for step in status.steps}
    eager, patient, whole = met["eager"], met["patient"], met["whole"]
    assert met["numbers"] is None
    assert eager is not None
    assert patient is not None
    assert patient == whole
    assert (patient.aligned, patient.waiting) == ((), ("0:numbers",))
    assert (patient.held_bytes, patient.recorded_bytes) == (0, 0)
    assert eager.recorded_bytes == patient.behind_bytes > 0
    assert report.status == "FAILED"
    assert "no acknowledgement from patient, whole" in report.failure
    assert sorted(report.steps) == ["eager", "numbers"]

"""A step that runs as a Spark streaming query: it keeps state or reads an outside source.

Spark plans, computes and keeps the state. This module writes the rows of each batch (the only
action), appends the batch and reads the query's position from its own files: positions come from
offsets/N, never from what a source last reported (rule F1), and a batch is committed once commits/N
exists.

Spark sends no notice when commits/N appears, and its listener bus can be late or lose events. So
`CommitWatch` looks for the file: every few milliseconds while a snapshot waits for that batch, and
otherwise rarely, since the next batch shows that the last one is committed.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from cutwater.errors import RunError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, InputId, StepId
from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.messages import Place
from cutwater.protocol.step.events import BatchAppended
from cutwater.protocol.step.machine import Step
from cutwater.runtime.batch_size import BatchBudget
from cutwater.runtime.output import SMALL_BYTES
from cutwater.runtime.reporting.failed_batch import FailedBatch, FailedInput, drop_unread, events_of
from cutwater.runtime.step import Closed, DriverCallbacks, PinnedFiles, RunningStep, StepConnections
from cutwater.spark.analysis.analysis import AnalyzedStep
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.batch_inputs import reading_of
from cutwater.spark.checkpoint_dir.kafka_start import read_start
from cutwater.spark.checkpoint_dir.offsets import note_streams
from cutwater.spark.checkpoint_dir.state_files import provider_called
from cutwater.spark.engine.input_watermarks import QueryWatermarks
from cutwater.spark.engine.kafka_watch import KafkaWatch, WatchedSource
from cutwater.spark.jvm.channel_scan import select_carried
from cutwater.spark.jvm.channel_source import ChannelOffset, ChannelSource
from cutwater.spark.jvm.empty_batch_source import EmptyBatchSource
from cutwater.spark.jvm.internals import POOL, Internals, NewQuery
from cutwater.spark.jvm.native_sink import NativeSink, PlannedBatch
from cutwater.spark.jvm.native_source import ExpectedCallbackError
from cutwater.spark.jvm.read_limits import ReadLimits
from cutwater.store.backends.directories import try_to_remove_tree

PARTITIONS: Final = "spark.sql.shuffle.partitions"
FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_STARTING: Final = threading.Lock()
_START_S: Final = 60.0
_STOPPED: Final = "its query was stopped by other code"
_OWES_BATCH: Final = (
    "Spark reads one of its sources in a single batch, because that source cannot tell where it "
    "ends now, and its event-time state needs a second batch to put out what is complete. Move "
    "that state to a step behind a source with chain=False, or run without --available-now."
)

_POLL_S: Final = 0.005
"""How often the watch looks while a snapshot waits for a commit."""

_REST_S: Final = 0.1
"""How often it looks otherwise."""


class _Ended(ExpectedCallbackError):
    """The error for Spark when a batch must not be committed; short, since Spark parses it."""


class QueryStep(RunningStep):
    """A step that runs as a streaming query."""

    kind = "query"

    def __init__(
        self,
        plan: PhysicalStep,
        machine: Step,
        wiring: StepConnections,
        callbacks: DriverCallbacks,
        analyzed: AnalyzedStep,
    ) -> None:
        """Prepare the query; its directory holds the restored batch, or nothing."""
        super().__init__(plan, machine, wiring, callbacks)
        self._analyzed = analyzed
        self._internals = Internals(analyzed.frame.sparkSession)
        self._sink = NativeSink(self._internals, self._on_batch, self.title)
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._sources: tuple[ChannelSource, ...] = ()
        self._watch: CommitWatch | None = None
        self.available_now = False
        self.checkpoint = wiring.directory / "query"
        self._pins = wiring.directory / "pins"
        self._pinned: dict[CheckpointId, PinnedFiles] = {}
        self._kafka: KafkaWatch | None = None
        self._pinned_offsets: dict[CheckpointId, Sequence[str | None]] = {}
        self.record_start: Callable[[int, str], None] = lambda *_: None
        self._began = machine.last
        self._offsets: Sequence[str | None] = ()
        self._late_since = ""
        # A channel by reference names each file once.
        self._reads_files = not analyzed.by_reference and any(
            source.startswith("FileSource") for source in analyzed.foreign
        )
        # Only an operator with state uses a watermark.
        followed = analyzed.event_times if analyzed.may_owe_batch else {}
        self._watermarks = QueryWatermarks(self._internals, followed)
        self._budget = BatchBudget(wiring.target_batch_ms)
        # A source by reference runs no job, and its readers take several of its batches at once.
        target_ms = wiring.target_source_ms
        if analyzed.by_reference or not analyzed.foreign:
            target_ms = 0
        self._limits = ReadLimits(self._internals, target_ms)

    # -- starting and ending

    def start(self) -> None:
        """Start the query at the position in its directory."""
        last = self.machine.last
        if last != NO_BATCH:
            self._offsets = query_log.read_batch(self.checkpoint, last).offsets
            self._watermarks.restore(self.checkpoint)
        for index, source in enumerate(self._sources):
            source.siblings = self._sources
            source.between_batches = self._between_batches
            # One input is enough to let the owed batch run (rule F22).
            owes = self.machine.owes_batch and index == 0
            source.begin(_line_of(self._offsets, source.reader.input), owes_batch=owes)
        for native in self._analyzed.natives:
            if isinstance(native, EmptyBatchSource):
                native.between_batches = self._between_batches
                native.begin(_empty_batch_line(self._offsets), owes_batch=self.machine.owes_batch)
        spark = self._analyzed.frame.sparkSession
        settings = self._settings(last)
        context = spark.sparkContext
        context.setLocalProperty(POOL, self.name)
        try:
            # A query reads its settings when it starts; other queries start in this session too.
            with _STARTING:
                before = {key: str(spark.conf.get(key)) for key in settings}
                for key, value in settings.items():
                    spark.conf.set(key, value)
                try:
                    self._query = self._internals.start_query(self._new_query(), self._sink)
                finally:
                    for key, value in before.items():
                        spark.conf.set(key, value)
            self._started.set()
            if self._kafka is not None:
                self._kafka.start()
        finally:
            context.setLocalProperty(POOL, None)  # type: ignore[arg-type]

    def _settings(self, last: BatchId) -> dict[str, str]:
        found = {}
        if self.plan.options.partitions is not None:
            found[PARTITIONS] = str(self.plan.options.partitions)
        if last == NO_BATCH:
            # Only a new query: Spark reads the provider of an old one from its log.
            provider = provider_called(self.plan.options.state)
            found[query_files.PROVIDER] = provider.class_name
            found[FORMAT] = str(provider.newest_format)
        elif not self._internals.version.keeps_format:
            found[FORMAT] = str(query_log.format_of(self.checkpoint, last))
        return found

    def connect(
        self,
        sources: Sequence[ChannelSource],
        watch: "CommitWatch",
    ) -> None:
        """Connect the query before it starts; `sources` are in the order of the step's inputs."""
        self._sources = tuple(sources)
        for source in self._sources:
            source.budget = self._budget
        self._watch = watch

    def follow(self, kafka: KafkaWatch) -> None:
        """Let a watch follow the Kafka sources of this step, before it starts."""
        groups = {node.name: node.options.consumer_group for node in self.plan.sources}
        for line, source in self._analyzed.kafka.items():
            identity, name = self._analyzed.identity.inputs[line], self._analyzed.streams[line]
            kafka.add(
                WatchedSource(self, line, name, source, dict(identity.topics), groups.get(name))
            )
            self._kafka = kafka

    def offset_at(self, line: int) -> str | None:
        """Return the offset of a stream after the last batch; for any thread."""
        offsets = self._offsets
        return offsets[line] if line < len(offsets) else None

    def decided(self, checkpoint_id: CheckpointId) -> None:
        """Let the offsets of a decided checkpoint be committed to consumer groups."""
        offsets = self._pinned_offsets.get(checkpoint_id)
        if self._kafka is not None and offsets is not None:
            self._kafka.decided(self, offsets)

    def on_commit_awaited(self) -> None:
        if self._watch is not None:
            self._watch.hurry()

    def _new_query(self) -> NewQuery:
        return NewQuery(
            frame=select_carried(self._analyzed.frame, self.wiring.channel),
            title=self.title,
            checkpoint=str(self.checkpoint),
            output_mode=self.plan.output_mode,
            trigger_ms=self.plan.options.trigger_ms,
            available_now=self._ends_by_itself,
        )

    def halt(self) -> None:
        if self._query is not None:
            self._query.stop()

    def problem(self) -> BaseException | None:
        if self.failure is not None:
            return self.failure
        if self._query is None or self._query.isActive:
            return None
        error = self._query.exception()
        if error is not None:
            return error
        if not self._ends_by_itself:
            return RunError(f"{_STOPPED}.")
        if not self._has_read_all(self._query):
            return RunError(
                f"{_STOPPED}, before it had read everything that was there when it started."
            )
        if self.machine.owes_batch and self.machine.committed == self.machine.last:
            return RunError(_OWES_BATCH)
        return None

    @property
    def _ends_by_itself(self) -> bool:
        return self.available_now and bool(self._analyzed.foreign)

    def source_ended(self) -> bool:
        if self._analyzed.foreign:
            query = self._query
            if query is None or query.isActive or not self._ends_by_itself:
                return False
            ended = query.exception() is None and self._has_read_all(query)
            return ended and not self._session_stopped()
        texts = self._offsets or (None,) * len(self._analyzed.natives)
        return all(
            source.exhausted(text)
            for source, text in zip(self._analyzed.natives, texts, strict=True)
        )

    def _has_read_all(self, query: StreamingQuery) -> bool:
        """Return whether a query that has ended has read all that was there at its start.

        At the start Spark records where each source ends, and before each batch it checks whether
        something is left. A source that cannot report its end is read in a single batch, without
        another check.
        """
        if self._internals.found_no_more(query):
            return True
        only = BatchId(self._began + 1)
        return self._internals.reads_once(query) and query_log.is_committed(self.checkpoint, only)

    def _session_stopped(self) -> bool:
        context = self._analyzed.frame.sparkSession.sparkContext
        return bool(context._jsc is None or context._jsc.sc().isStopped())  # noqa: SLF001

    def count_late_rows(self) -> None:
        """Count the late rows that Spark's operators have dropped; only event time has any."""
        query = self._query
        if query is None or not self._analyzed.is_stateful or self.machine.watermark_ms is None:
            return
        self._late_since, dropped = self._internals.late_rows(query, self._late_since)
        self.late_rows += dropped

    # -- batches

    def _inputs(self) -> list[InputId]:
        return [source.reader.input for source in self._sources]

    def _on_batch(self, rows: PlannedBatch, batch: BatchId) -> None:
        self.busy = True
        try:
            self._run(rows, batch)
        except Closed:
            raise _Ended from None
        except BaseException as error:  # noqa: BLE001 - whatever a user's function raises
            if not (self.wiring.signal.closed or self.machine.finished):
                self.failure = self._reason(error)
                self.callbacks.failed(self, self.failure)
            raise _Ended from None
        finally:
            self.busy = False

    def _reason(self, error: BaseException) -> BaseException:
        """Return why a batch failed: a stop cancels its jobs, and their error does not show it."""
        if self._query is None or not self._internals.is_stop_requested(self._query):
            return error
        stopped = RunError(f"{_STOPPED}.")
        stopped.__cause__ = error
        return stopped

    def _run(self, rows: PlannedBatch, batch: BatchId) -> None:
        if self.wiring.signal.closed or self.machine.finished:
            raise Closed
        self._note_committed(BatchId(batch - 1))
        self._watermarks.put_back(self._running_query())
        log = query_log.read_batch(self.checkpoint, batch)
        moved = self._find_moved_inputs(log.offsets)
        if self._reads_files:
            rows.drop_repeated_files()
        if self._began == self.machine.last:
            self._record_starts()
        small = self.last_bytes is not None and self.last_bytes < SMALL_BYTES
        if small and not self._analyzed.is_stateful:
            rows = rows.gathered()
        began_s = time.monotonic()
        written = self.wiring.output.write(rows, batch)
        self.last_bytes = written.size_bytes
        took_ms = round((time.monotonic() - began_s) * 1000)
        self._budget.note(self._read_bytes(moved), took_ms)
        self._limits.adapt(self._running_query(), rows, (self._offsets, log.offsets), took_ms)
        is_new = bool(moved) or tuple(log.offsets) != tuple(self._offsets)
        offsets = None
        if not self.wiring.inputs:
            names = self._analyzed.stream_keys
            offsets = {names[at]: text for at, text in enumerate(log.offsets) if text is not None}
        self.append(
            written,
            BatchAppended(
                batch,
                written.event,
                moved,
                offsets,
                watermark_ms=log.watermark_ms or None,
                # Certain only when the batch is committed. Until then, assume that one is owed
                # rather than miss it.
                owes_batch=self._analyzed.may_owe_batch and is_new,
                staged=written.staged,
            ),
        )
        self._offsets = log.offsets
        if self._watch is not None:
            self._watch.watch(self, batch)

    def _record_starts(self) -> None:
        """Record where Kafka sources began that the restored batch has no position of (F12)."""
        for line in self._analyzed.kafka:
            log = self._analyzed.identity.inputs[line].log
            start = read_start(query_files.source_log(self.checkpoint, log))
            if start is not None and self.offset_at(line) is None:
                self.record_start(line, start)

    def _running_query(self) -> StreamingQuery:
        """Return the query; its first batch may start before `start_query` has returned."""
        if not self._started.wait(_START_S) or self._query is None:
            raise RunError(f"its query had not started {_START_S:.0f} s after its first batch.")
        return self._query

    def _find_moved_inputs(self, offsets: Sequence[str | None]) -> Mapping[InputId, Place]:
        moved = {}
        for source in self._inputs():
            channel = self.wiring.inputs[source]
            text = _line_of(offsets, source)
            end = ChannelOffset.parse(text, source).position
            if end > channel.position(self.reader(source)).position:
                moved[source] = channel.place(end)
        return moved

    def _read_bytes(self, moved: Mapping[InputId, Place]) -> int:
        """Return the bytes of the channel of which a batch reads most."""
        return max(
            (
                channel.read_bytes(channel.position(self.reader(source)), end)
                for source, end in moved.items()
                for channel in (self.wiring.inputs[source],)
            ),
            default=0,
        )

    def failed_batch(self) -> FailedBatch | None:
        """Return what the batch after the last one reads, if Spark has planned it."""
        last, batch = self.machine.last, BatchId(self.machine.last + 1)
        if batch not in query_log.batches(self.checkpoint, query_log.OFFSETS):
            return None
        ends = query_log.read_batch(self.checkpoint, batch).offsets
        starts: Sequence[str | None] = (None,) * len(ends)
        if last != NO_BATCH:
            starts = query_log.read_batch(self.checkpoint, last).offsets
        found: list[FailedInput | None] = [
            reading_of(stream, start, end, query_files.source_log(self.checkpoint, identity.log))
            for identity, stream, start, end in zip(
                self._analyzed.identity.inputs, self._analyzed.lines, starts, ends, strict=True
            )
        ]
        for source in self._inputs():
            before, after = (
                ChannelOffset.parse(_line_of(offsets, source), source).position
                for offsets in (starts, ends)
            )
            if after > before:
                found.append(events_of(source.channel, before, after))
        return FailedBatch(self.name, batch, drop_unread(found))

    def note_if_committed(self, batch: BatchId) -> bool:
        """Check whether Spark has committed the batch; if so, notify the machine."""
        if not query_log.is_committed(self.checkpoint, batch):
            return False
        self._note_committed(batch)
        return True

    def _note_committed(self, batch: BatchId) -> None:
        if batch <= self._began or self.machine.committed >= batch:
            return
        owes = False
        if self._analyzed.may_owe_batch:
            before = query_log.read_batch(self.checkpoint, batch).watermark_ms
            owes = query_log.next_watermark_ms(self.checkpoint, batch) > before
        self.committed(batch, owes_batch=owes)

    def _between_batches(self) -> bool:
        """Record the last batch as committed; return whether Spark is about to run an owed one."""
        last = self.machine.last
        if last > self._began:
            self._note_committed(last)
        return self.machine.owes_batch

    # -- snapshots

    def pin(self, checkpoint_id: CheckpointId, batch: BatchId) -> None:
        """Hard-link the files of a committed batch, and record the streams of its offsets."""
        directory = self._pin(checkpoint_id)
        files = query_files.pin(self.checkpoint, batch, directory)
        if batch != NO_BATCH:
            files += (note_streams(directory, self._analyzed.lines),)
            # Under the step's lock, so the next batch cannot end and change the watermarks.
            files += self._watermarks.note(self._query, directory)
            if self._kafka is not None:
                log = query_log.read_batch(directory, batch)
                self._pinned_offsets[checkpoint_id] = log.offsets
        self._pinned[checkpoint_id] = PinnedFiles(directory, files)

    def unpin(self, checkpoint_id: CheckpointId) -> None:
        self._pinned.pop(checkpoint_id, None)
        self._pinned_offsets.pop(checkpoint_id, None)
        try_to_remove_tree(self._pin(checkpoint_id))

    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles | None:
        found = self._pinned.get(checkpoint_id)
        if found is None:
            raise FileNotFoundError(f"the files of checkpoint {checkpoint_id} are dropped")
        return found

    def _pin(self, checkpoint_id: CheckpointId) -> Path:
        return self._pins / str(checkpoint_id)


def _line_of(offsets: Sequence[str | None], source: InputId) -> str | None:
    """Find the line of an input; lines follow the order of Spark's plan, not of our inputs."""
    marks = (f'"channel":"{source.channel}"', f'"input":{source.ordinal},')
    return next((text for text in offsets if text and all(mark in text for mark in marks)), None)


def _empty_batch_line(offsets: Sequence[str | None]) -> str | None:
    return next((text for text in offsets if text and text.startswith('{"tick"')), None)


class CommitWatch:
    """Watches the queries of one generation; its thread starts with the first batch."""

    def __init__(self, failed: Callable[[RunningStep, BaseException], None]) -> None:
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: dict[StepId, tuple[QueryStep, BatchId]] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, step: QueryStep, batch: BatchId) -> None:
        """Notify the step when this batch of its query is committed."""
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name="commit watch", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting[step.name] = (step, batch)
            self._changed.notify()

    def hurry(self) -> None:
        """Look again now: a snapshot waits."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                waiting = list(self._waiting.values())
            for step, batch in waiting:
                self._look(step, batch)
            with self._changed:
                if self._waiting and not self._closed:
                    waited_for = any(
                        step.machine.awaits_commit for step, _ in self._waiting.values()
                    )
                    self._changed.wait(_POLL_S if waited_for else _REST_S)

    def _look(self, step: QueryStep, batch: BatchId) -> None:
        try:
            found = step.machine.committed >= batch or step.note_if_committed(batch)
        except BaseException as error:  # noqa: BLE001 - a defect must not end the watch unseen
            self._failed(step, error)
            found = True
        if found:
            with self._changed:
                if self._waiting.get(step.name) == (step, batch):
                    del self._waiting[step.name]

"""A step as a streaming query of Spark's: one that keeps state or reads an outside source.

Spark plans, computes and remembers; this module writes each batch's rows (the one action), appends
the batch and learns from the query's own files where it stands: positions come from offsets/N,
never from memory of what a source last said (rule F1), and a batch counts as committed when
commits/N is there.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from cutwater.errors import RunError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, InputId
from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.messages import Place
from cutwater.protocol.step.events import BatchAppended
from cutwater.protocol.step.machine import Step
from cutwater.runtime.output import SMALL_BYTES
from cutwater.runtime.reporting.failed_batch import FailedBatch, FailedInput, drop_unread, events_of
from cutwater.runtime.step import Closed, DriverCallbacks, PinnedFiles, RunningStep, StepConnections
from cutwater.spark.analysis.analysis import StepForm
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.batch_inputs import reading_of
from cutwater.spark.checkpoint_dir.offsets import note_streams
from cutwater.spark.engine.input_watermarks import QueryWatermarks
from cutwater.spark.jvm.channel_scan import carried
from cutwater.spark.jvm.channel_source import ChannelOffset, ChannelSource
from cutwater.spark.jvm.empty_batch_source import PulseSource
from cutwater.spark.jvm.internals import POOL, Internals, NewQuery
from cutwater.spark.jvm.native_sink import NativeSink, PlannedBatch
from cutwater.spark.jvm.native_source import Told
from cutwater.store.backends.directories import try_to_remove_tree

PARTITIONS: Final = "spark.sql.shuffle.partitions"
_STARTING: Final = threading.Lock()
_START_S: Final = 60.0
_STOPPED: Final = "its query was stopped by other code"
_OWES_BATCH: Final = (
    "Spark reads one of its sources in a single batch, because that source cannot tell where it "
    "ends now, and its event-time state needs a second batch to put out what is complete. Move "
    "that state to a step behind a source with chain=False, or run without --available-now."
)


class _Ended(Told):
    """What Spark is told when a batch must not be committed; short, since Spark parses it."""


class QueryStep(RunningStep):
    """A step that runs as a streaming query."""

    kind = "query"

    def __init__(
        self,
        plan: PhysicalStep,
        machine: Step,
        wiring: StepConnections,
        callbacks: DriverCallbacks,
        form: StepForm,
    ) -> None:
        """Prepare the query; its directory holds the restored batch, or nothing.

        Args:
            plan: The step.
            machine: Its machine, standing at the restored batch.
            wiring: What it is connected to.
            callbacks: What it reports to the driver.
            form: Its result and sources, as Spark sees them.
        """
        super().__init__(plan, machine, wiring, callbacks)
        self._form = form
        self._internals = Internals(form.frame.sparkSession)
        self._sink = NativeSink(self._internals, self._on_batch, self.title)
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._sources: tuple[ChannelSource, ...] = ()
        self._watch: Callable[[QueryStep, BatchId], None] = lambda *_: None
        self.available_now = False
        self.checkpoint = wiring.directory / "query"
        self._pins = wiring.directory / "pins"
        self._pinned: dict[CheckpointId, PinnedFiles] = {}
        self._began = machine.last
        self._offsets: Sequence[str | None] = ()
        self._late_since = ""
        # Only an operator with state asks for a watermark.
        followed = form.event_times if form.may_owe_batch else {}
        self._watermarks = QueryWatermarks(self._internals, followed)

    # -- starting and ending

    def start(self) -> None:
        """Start the query where its directory says."""
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
        for native in self._form.natives:
            if isinstance(native, PulseSource):
                native.between_batches = self._between_batches
                native.begin(_pulse_line(self._offsets), owes_batch=self.machine.owes_batch)
        spark = self._form.frame.sparkSession
        partitions = self.plan.options.partitions
        context = spark.sparkContext
        context.setLocalProperty(POOL, self.name)
        try:
            # A query takes its settings when it starts; others may start in this session too.
            with _STARTING:
                before = spark.conf.get(PARTITIONS)
                if partitions is not None:
                    spark.conf.set(PARTITIONS, str(partitions))
                try:
                    self._query = self._internals.start_query(self._new_query(), self._sink)
                finally:
                    spark.conf.set(PARTITIONS, str(before))
            self._started.set()
        finally:
            context.setLocalProperty(POOL, None)  # type: ignore[arg-type]

    def connect(
        self,
        sources: Sequence[ChannelSource],
        watch: Callable[["QueryStep", BatchId], None],
    ) -> None:
        """Connect the query before it starts.

        Args:
            sources: Its channel sources, in the order of the step's inputs.
            watch: Calls `note_if_committed` once Spark has committed a batch; does not block.
        """
        self._sources = tuple(sources)
        self._watch = watch

    def _new_query(self) -> NewQuery:
        return NewQuery(
            frame=carried(self._form.frame, self.wiring.channel),
            title=self.title,
            checkpoint=str(self.checkpoint),
            output_mode=self.plan.output_mode,
            trigger_ms=self.plan.options.trigger_ms,
            available_now=self._ends_by_itself,
        )

    def halt(self) -> None:
        """Stop the query and wait for its thread."""
        if self._query is not None:
            self._query.stop()

    def problem(self) -> BaseException | None:
        """Return why the query has died, if it has."""
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
        return self.available_now and bool(self._form.foreign)

    def source_ended(self) -> bool:
        """Say whether the outside sources have ended."""
        if self._form.foreign:
            query = self._query
            if query is None or query.isActive or not self._ends_by_itself:
                return False
            ended = query.exception() is None and self._has_read_all(query)
            return ended and not self._session_stopped()
        texts = self._offsets or (None,) * len(self._form.natives)
        return all(
            source.exhausted(text) for source, text in zip(self._form.natives, texts, strict=True)
        )

    def _has_read_all(self, query: StreamingQuery) -> bool:
        """Say whether a query that has ended has read all that was there at its start.

        Spark notes at the start where each source ends, and looks whether something is left
        before each batch. It reads a source that cannot tell its end in one batch, and does not
        look again after it.
        """
        if self._internals.found_no_more(query):
            return True
        only = BatchId(self._began + 1)
        return self._internals.reads_once(query) and query_log.is_committed(self.checkpoint, only)

    def _session_stopped(self) -> bool:
        context = self._form.frame.sparkSession.sparkContext
        return bool(context._jsc is None or context._jsc.sc().isStopped())  # noqa: SLF001

    def count_late_rows(self) -> None:
        """Ask Spark what its operators have dropped; only those with event time can."""
        query = self._query
        if query is None or not self._form.is_stateful or self.machine.watermark_ms is None:
            return
        self._late_since, dropped = self._internals.late_rows(query, self._late_since)
        self.late_rows += dropped

    # -- batches

    def _inputs(self) -> list[InputId]:
        return [one.reader.input for one in self._sources]

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
        """Return why a batch failed: a stop cancels its jobs, whose error does not tell of it."""
        if self._query is None or not self._internals.is_told_to_stop(self._query):
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
        moved = self._moved(log.offsets)
        small = self.last_bytes is not None and self.last_bytes < SMALL_BYTES
        if small and not self._form.is_stateful:
            rows = rows.gathered()
        written = self.wiring.output.write(rows, batch)
        self.last_bytes = written.size_bytes
        is_new = bool(moved) or tuple(log.offsets) != tuple(self._offsets)
        offsets = None
        if not self.wiring.inputs:
            names = self._form.stream_keys
            offsets = {names[at]: text for at, text in enumerate(log.offsets) if text is not None}
        self.append(
            written,
            BatchAppended(
                batch,
                written.event,
                moved,
                offsets,
                watermark_ms=log.watermark_ms or None,
                # Known for sure when the batch is committed; until then, better once too often.
                owes_batch=self._form.may_owe_batch and is_new,
                staged=written.staged,
            ),
        )
        self._offsets = log.offsets
        self._watch(self, batch)

    def _running_query(self) -> StreamingQuery:
        """Return the query; its first batch may begin before its start has returned here."""
        if not self._started.wait(_START_S) or self._query is None:
            raise RunError(f"its query had not started {_START_S:.0f} s after its first batch.")
        return self._query

    def _moved(self, offsets: Sequence[str | None]) -> Mapping[InputId, Place]:
        moved = {}
        for source in self._inputs():
            channel = self.wiring.inputs[source]
            text = _line_of(offsets, source)
            end = ChannelOffset.parse(text, source).position
            if end > channel.position(self.reader(source)).position:
                moved[source] = channel.place(end)
        return moved

    def failed_batch(self) -> FailedBatch | None:
        """Say what the batch after the last one reads, as far as Spark has planned it."""
        last, batch = self.machine.last, BatchId(self.machine.last + 1)
        if batch not in query_log.batches(self.checkpoint, query_log.OFFSETS):
            return None
        ends = query_log.read_batch(self.checkpoint, batch).offsets
        starts: Sequence[str | None] = (None,) * len(ends)
        if last != NO_BATCH:
            starts = query_log.read_batch(self.checkpoint, last).offsets
        found: list[FailedInput | None] = [
            reading_of(stream, start, end, query_files.source_log(self.checkpoint, one.log))
            for one, stream, start, end in zip(
                self._form.identity.inputs, self._form.lines, starts, ends, strict=True
            )
        ]
        for source in self._inputs():
            before, after = (
                ChannelOffset.parse(_line_of(one, source), source).position
                for one in (starts, ends)
            )
            if after > before:
                found.append(events_of(source.channel, before, after))
        return FailedBatch(self.name, batch, drop_unread(found))

    def note_if_committed(self, batch: BatchId) -> bool:
        """Look whether Spark has committed the batch, and say so to the machine if it has."""
        if not query_log.is_committed(self.checkpoint, batch):
            return False
        self._note_committed(batch)
        return True

    def _note_committed(self, batch: BatchId) -> None:
        if batch <= self._began or self.machine.committed >= batch:
            return
        owes = False
        if self._form.may_owe_batch:
            before = query_log.read_batch(self.checkpoint, batch).watermark_ms
            owes = query_log.next_watermark_ms(self.checkpoint, batch) > before
        self.committed(batch, owes_batch=owes)

    def _between_batches(self) -> bool:
        """Note the last batch as committed; say whether Spark is about to run an owed one."""
        last = self.machine.last
        if last > self._began:
            self._note_committed(last)
        return self.machine.owes_batch

    # -- snapshots

    def pin(self, checkpoint_id: CheckpointId, batch: BatchId) -> None:
        """Hard-link the files of a committed batch, and note what its offsets are of."""
        directory = self._pin(checkpoint_id)
        files = query_files.pin(self.checkpoint, batch, directory)
        if batch != NO_BATCH:
            files += (note_streams(directory, self._form.lines),)
            # Under the step's lock, so that the next batch cannot end: its watermarks are not ours.
            files += self._watermarks.note(self._query, directory)
        self._pinned[checkpoint_id] = PinnedFiles(directory, files)

    def unpin(self, checkpoint_id: CheckpointId) -> None:
        """Drop the links."""
        self._pinned.pop(checkpoint_id, None)
        try_to_remove_tree(self._pin(checkpoint_id))

    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles | None:
        """Return the links."""
        found = self._pinned.get(checkpoint_id)
        if found is None:
            raise FileNotFoundError(f"the files of checkpoint {checkpoint_id} are dropped")
        return found

    def _pin(self, checkpoint_id: CheckpointId) -> Path:
        return self._pins / str(checkpoint_id)


def _line_of(offsets: Sequence[str | None], source: InputId) -> str | None:
    """Find the line of an input; lines are in the order of the plan, which need not be ours."""
    marks = (f'"channel":"{source.channel}"', f'"input":{source.ordinal},')
    return next((text for text in offsets if text and all(one in text for one in marks)), None)


def _pulse_line(offsets: Sequence[str | None]) -> str | None:
    return next((text for text in offsets if text and text.startswith('{"tick"')), None)

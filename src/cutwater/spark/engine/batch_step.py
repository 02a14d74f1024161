"""A stateless step over channels, as plain batch jobs: its whole state is its positions.

The next range of each input is read as a plain DataFrame, the step's functions are applied to it
and the result is appended. New data on one input is enough to run a batch. The functions are called
for every batch, so they must only describe rows and have no side effects (rule F34).
"""

import time
from collections.abc import Mapping
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from cutwater.errors import StepError
from cutwater.ids import BatchId, CheckpointId, InputId
from cutwater.planning.physical_plan import PhysicalStep
from cutwater.protocol.messages import Place
from cutwater.protocol.step.events import BatchAppended
from cutwater.protocol.step.machine import Step
from cutwater.runtime.batch_size import BatchBudget
from cutwater.runtime.output import SMALL_BYTES
from cutwater.runtime.reporting.failed_batch import FailedBatch, events_of
from cutwater.runtime.step import Closed, DriverCallbacks, PinnedFiles, RunningStep, StepConnections
from cutwater.sinks.base import FrameRows
from cutwater.spark.analysis.analysis import AnalyzedStep, channel_form
from cutwater.spark.jvm.channel_scan import ChannelScan, columns_of, select_carried
from cutwater.spark.jvm.internals import POOL, Internals

_IDLE_WAIT_S: Final = 5.0
_HALT_S: Final = 60.0


class BatchStep(RunningStep):
    """A step that runs as batch jobs, in a thread of its own."""

    kind = "batch"

    def __init__(
        self,
        plan: PhysicalStep,
        machine: Step,
        wiring: StepConnections,
        callbacks: DriverCallbacks,
        analyzed: AnalyzedStep,
    ) -> None:
        super().__init__(plan, machine, wiring, callbacks)
        self._spark: SparkSession = analyzed.frame.sparkSession
        internals = Internals(self._spark)
        self._scans = {
            step_input.id: ChannelScan(internals, wiring.inputs[step_input.id], step_input.keys)
            for step_input in plan.inputs
        }
        self._columns = analyzed.schema
        self._thread = InheritableThread(target=self._loop, name=f"step {plan.name}", daemon=True)
        most = plan.options.max_batch_bytes
        self._most = {step_input.id: step_input.batch_bytes(most) for step_input in plan.inputs}
        self._budget = BatchBudget(wiring.target_batch_ms)
        self._next_s = 0.0
        self._ends_now: Mapping[InputId, int] = {}

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        """Cancel what runs and wait for the thread."""
        if self._thread.ident is None:
            return
        deadline = time.monotonic() + _HALT_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Repeated, so that a job submitted after the first call is cancelled too.
            self._spark.sparkContext.cancelJobGroup(self.title)
            self._thread.join(1.0)
        if self._thread.is_alive():
            message = f"its batch did not end within {_HALT_S:.0f} s"
            raise TimeoutError(message)

    def _loop(self) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty(POOL, self.name)
        context.setJobGroup(self.title, f"step {self.name}", interruptOnCancel=False)
        signal = self.wiring.signal
        try:
            while not signal.closed and not self.machine.finished:
                seen = signal.count
                wait_s = self._next_s - time.monotonic()
                ends = self._ends()
                if not ends:
                    signal.wait(seen, _IDLE_WAIT_S)
                elif wait_s > 0:
                    signal.wait(signal.count, wait_s)
                else:
                    self.busy = True
                    self._run(ends)
                    self.busy = False
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever a user's function raises
            if not signal.closed:
                self.failure = error
                self.callbacks.failed(self, error)

    def _ends(self) -> Mapping[InputId, int]:
        ends = {}
        for source, channel in self.wiring.inputs.items():
            reader = self.reader(source)
            start = channel.position(reader).position
            most = self._budget.within(self._most[source])
            end = channel.end_within(start, channel.limit(reader), most)
            if end > start:
                ends[source] = end
        return ends

    def failed_batch(self) -> FailedBatch | None:
        """Return which Events are read by the batch that has started and is not appended."""
        found = [
            events_of(
                source.channel,
                self.wiring.inputs[source].position(self.reader(source)).position,
                end,
            )
            for source, end in self._ends_now.items()
        ]
        return FailedBatch(self.name, BatchId(self.machine.last + 1), tuple(found))

    def _run(self, ends: Mapping[InputId, int]) -> None:
        batch = BatchId(self.machine.last + 1)
        self._ends_now = ends
        began_s = time.monotonic()
        self._next_s = began_s + (self.plan.options.trigger_ms or 0) / 1000
        places: dict[InputId, Place] = {}
        frames: dict[InputId, DataFrame] = {}
        sizes: list[int] = []
        for source, channel in self.wiring.inputs.items():
            start = channel.position(self.reader(source))
            end = channel.place(ends[source]) if source in ends else start
            if source in ends:
                places[source] = end
            sizes.append(channel.read_bytes(start, end))
            scan = self._scans[source]
            frames[source] = scan.rows(start.position, end.position, streaming=False)
        result = self.plan.evaluate(self._spark, frames)
        assert isinstance(result, DataFrame)
        self._check_columns(result)
        output = FrameRows(select_carried(result, self.wiring.channel))
        if sum(sizes) < SMALL_BYTES:
            output = output.gathered()
        written = self.wiring.output.write(output, batch)
        self._budget.note(max(sizes), round((time.monotonic() - began_s) * 1000))
        appended = BatchAppended(
            batch,
            written.event,
            places,
            watermark_ms=self._watermark_ms(ends),
            staged=written.staged,
        )
        self.append(written, appended)
        self.committed(batch)

    def _watermark_ms(self, ends: Mapping[InputId, int]) -> int | None:
        """Return the smallest watermark of its inputs after a batch; None while one has none.

        An input without event time does not count.
        """
        found = []
        for source, channel in self.wiring.inputs.items():
            reader = self.reader(source)
            end = ends.get(source, channel.position(reader).position)
            watermark_ms = channel.watermark_ms(reader, end)
            if watermark_ms is not None:
                found.append(watermark_ms)
            elif channel.form.watermark is not None:
                return None
        return min(found, default=None)

    def _check_columns(self, result: DataFrame) -> None:
        """Refuse rows that are not what the functions described at the start."""
        found = columns_of(channel_form(result.schema).schema)
        if found == self._columns:
            return
        before, after = set(self._columns.fields), set(found.fields)
        gone = ", ".join(
            f"{column.name} {column.dataType.simpleString()}" for column in before - after
        )
        new = ", ".join(
            f"{column.name} {column.dataType.simpleString()}" for column in after - before
        )
        reason = (
            f"its rows do not fit its columns: {new or 'nothing'} in place of {gone or 'nothing'}; "
            "a function must describe the same columns every time it is called."
        )
        raise StepError(self.name, str(self.plan.nodes[-1].place), reason)

    # -- nothing but positions

    def pin(self, checkpoint_id: CheckpointId, batch: BatchId) -> None:
        """Do nothing: there are no files."""

    def unpin(self, checkpoint_id: CheckpointId) -> None:
        """Do nothing: there are no files."""

    def pinned(self, checkpoint_id: CheckpointId) -> PinnedFiles | None:  # noqa: ARG002
        """Return None: there are no files."""
        return None

    def source_ended(self) -> bool:
        """Return False: it reads no outside source."""
        return False

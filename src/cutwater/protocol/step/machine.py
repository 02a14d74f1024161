"""One step's part of the protocol: what it appends, what its snapshot is, when it acknowledges.

A step is a source (with an injector) or a consumer (with an aligner), never both (F11). A step
handles one event at a time, under the step's lock. In that critical section appending Event N
makes N the last batch, and appending the barrier notes "the snapshot is the last batch" (F1). The
acknowledgement waits until that batch is committed, everything in flight is known and the bytes
are stored (PROTOCOL.md section 6). Any failure ends the generation; no step restarts alone (F10).
Upholds I1, I3, I5, I6 and I10.
"""

from collections.abc import Callable, Iterable
from typing import Any

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_BATCH, NO_CHECKPOINT, BatchId, CheckpointId, Generation
from cutwater.protocol.cut import Committable, StepSnapshot
from cutwater.protocol.evolution.identity import NO_OFFSET
from cutwater.protocol.messages import START, Barrier, EndOfInput, Watermark
from cutwater.protocol.options import CheckpointOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import (
    Advanced,
    AlignerCommand,
    Announced,
    AttemptOver,
    BarrierSeen,
    Captured,
    Cause,
    Decline,
    Emit,
    EndSeen,
    LogGrew,
    Tick,
)
from cutwater.protocol.step.events import (
    Append,
    BatchAppended,
    BatchCommitted,
    Close,
    CloseGate,
    Ended,
    EndReached,
    OpenGate,
    Poll,
    StepCommand,
    StepEvent,
    Stored,
)
from cutwater.protocol.step.injector import Injector
from cutwater.protocol.step.snapshots import Restored, SnapshotBook
from cutwater.protocol.topology import StepSpec

Commands = tuple[StepCommand, ...]


class Step:
    """The state machine of one step in one generation."""

    def __init__(
        self,
        spec: StepSpec,
        options: CheckpointOptions,
        generation: Generation,
        restored: Restored | None = None,
    ) -> None:
        begin = restored or Restored(positions=dict.fromkeys(spec.inputs, START))
        if set(begin.positions) != set(spec.inputs):
            message = f"{spec.step} has inputs {spec.inputs}, not {tuple(begin.positions)}."
            raise ProtocolViolation(message)
        self.spec = spec
        self._generation = generation
        self._last = begin.batch
        self._committed = begin.batch
        self._output = begin.output
        self._output_batch = NO_BATCH
        self._offsets = begin.offsets
        # A source that replaces another one has no position yet either.
        self._unbegun = begin.batch == NO_BATCH or NO_OFFSET in begin.offsets.values()
        self._watermark_ms = begin.watermark_ms
        self._owes_batch = begin.owes_batch
        self._staged: list[Committable] = []
        self._emitted = NO_CHECKPOINT
        self._over = NO_CHECKPOINT
        self._announced: dict[CheckpointId, Barrier] = {}
        self._book = SnapshotBook()
        self._gates: set[CheckpointId] = set()
        self._finished = False
        self._closed = False
        self.injector: Injector | None = None
        self._aligner: Aligner | None = None
        if spec.is_source:
            self.injector = Injector(spec.step, generation, options.max_concurrent)
            self._poll = self.injector.poll_handle()
        else:
            self._aligner = Aligner(
                begin.positions,
                spec.unaligned(options.unaligned),
                generation=generation,
                is_sink=spec.is_sink,
                max_concurrent=options.max_concurrent,
            )
        self._handlers: dict[type, Callable[[Any], Commands]] = {
            BatchAppended: self._on_appended,
            BatchCommitted: self._on_committed,
            Poll: self._on_poll,
            EndReached: self._on_end_reached,
            Stored: self._book.stored,
            Announced: self._on_announced,
            Ended: self._on_ended,
            Close: self._on_close,
            BarrierSeen: self._align,
            EndSeen: self._align,
            LogGrew: self._align,
            Tick: self._align,
        }

    def handle(self, event: StepEvent) -> Commands:
        """Handle one event, under the step's lock, and return the commands to carry out, in order.

        Raises:
            ProtocolViolation: If the event is not possible now; the step has not changed.
        """
        if self._closed:
            # Late events are ignored; an event that would change the channel is refused.
            if isinstance(event, BatchAppended):
                message = f"{self.spec.step}: generation {self._generation} is closed."
                raise ProtocolViolation(message)
            return ()
        return self._handlers[type(event)](event)

    # -- batches

    def _on_appended(self, event: BatchAppended) -> Commands:
        self._check_append(event)
        commands: list[StepCommand] = []
        aligned: Iterable[AlignerCommand] = ()
        if self._aligner is not None:
            aligned = self._aligner.handle(Advanced(event.moved))
        self._last = event.batch
        if event.event is not None:
            commands.append(Append(event.event))
            self._output = self._output.after(event.event.size_bytes)
            self._output_batch = event.batch
        watermark_ms = event.watermark_ms
        if watermark_ms is not None and (
            self._watermark_ms is None or self._watermark_ms < watermark_ms
        ):
            commands.append(Append(Watermark(watermark_ms)))
            self._watermark_ms = watermark_ms
        self._offsets = event.offsets or self._offsets
        self._unbegun = False
        self._owes_batch = event.owes_batch
        self._staged += event.staged
        return (*commands, *self._follow(aligned))

    def _check_append(self, event: BatchAppended) -> None:
        name = self.spec.step
        problem = ""
        if event.batch != self._last + 1:
            problem = f"batch {event.batch} does not follow batch {self._last}"
        elif self._finished:
            problem = f"batch {event.batch} comes after the end"
        elif event.moved and self._aligner is None:
            problem = f"batch {event.batch} of a source moves inputs"
        elif self._gates:
            first = min(self._gates)
            problem = f"batch {event.batch} must wait: checkpoint {first} drains the source"
        elif event.event is not None and event.event.batch != event.batch:
            problem = f"the Event of batch {event.batch} names batch {event.event.batch}"
        elif event.event is not None and event.event.rows < 1:
            problem = f"batch {event.batch} has no rows and is not an Event"
        elif any(
            committable.sink != self.spec.sink or committable.batch != event.batch
            for committable in event.staged
        ):
            problem = f"batch {event.batch} stages output that is not its own"
        elif self._last != self._committed:
            problem = f"batch {event.batch} came before batch {self._last} was committed"
        if problem:
            message = f"{name}: {problem}."
            raise ProtocolViolation(message)

    def _on_committed(self, event: BatchCommitted) -> Commands:
        if event.batch != self._last or self._committed == self._last:
            message = (
                f"{self.spec.step}: batch {event.batch} cannot be committed, the last appended "
                f"is {self._last}."
            )
            raise ProtocolViolation(message)
        self._committed = event.batch
        if event.owes_batch is not None:
            self._owes_batch = event.owes_batch
        return self._book.batch_committed(event.batch)

    # -- barriers

    def _on_poll(self, _: Poll) -> Commands:
        if self.injector is None:
            message = f"{self.spec.step} is not a source and has nothing to poll."
            raise ProtocolViolation(message)
        if self._unbegun and not self.spec.pinned_start:
            return ()
        barrier = self._poll.poll()
        return () if barrier is None else self._emit(barrier, Cause.ALIGNED)

    def _align(self, event: BarrierSeen | EndSeen | LogGrew | Tick) -> Commands:
        if self._aligner is None:
            message = f"{self.spec.step} is a source and has no inputs."
            raise ProtocolViolation(message)
        return self._follow(self._aligner.handle(event))

    def _follow(self, commands: Iterable[AlignerCommand]) -> Commands:
        """Carry out the commands for this step and pass the others on, in order."""
        done: list[StepCommand] = []
        for command in commands:
            match command:
                case Emit(barrier, cause):
                    done += self._emit(barrier, cause)
                case Captured():
                    done += self._book.captured(command)
                case Decline():
                    done += self._book.forget(command.checkpoint_id)
                    done.append(command)
                case _:
                    done.append(command)
        return tuple(done)

    def _emit(self, barrier: Barrier, cause: Cause) -> Commands:
        if self._finished:
            # The end of input acts as this barrier; only the snapshot is taken.
            return self._note(barrier, cause)
        self._emitted = barrier.checkpoint_id
        commands: Commands = (Append(barrier),)
        if barrier.is_drain and self.spec.is_source:
            self._gates.add(barrier.checkpoint_id)
            commands += (CloseGate(barrier.checkpoint_id),)
        return commands + self._note(barrier, cause)

    def _note(self, barrier: Barrier, cause: Cause) -> Commands:
        aligner = self._aligner
        snapshot = StepSnapshot(
            step=self.spec.step,
            checkpoint_id=barrier.checkpoint_id,
            generation=self._generation,
            batch=self._last,
            positions={} if aligner is None else aligner.positions,
            output=self._output,
            output_batch=self._output_batch,
            offsets=self._offsets,
            watermark_ms=self._watermark_ms,
            owes_batch=self._owes_batch,
            staged=tuple(self._staged),
            cause=cause,
            finished=self._finished,
        )
        committed = self._last == self._committed
        return self._book.note(snapshot, committed=committed, captured=aligner is None)

    # -- attempts and ends

    def _on_announced(self, event: Announced) -> Commands:
        barrier = event.barrier
        if barrier.epoch != self._generation or barrier.is_cancel:
            message = f"{self.spec.step}: {barrier} does not start an attempt of this generation."
            raise ProtocolViolation(message)
        if barrier.checkpoint_id <= self._over:
            return ()
        if self.injector is not None and not self._finished:
            self.injector.offer(barrier)
        self._announced[barrier.checkpoint_id] = barrier
        if self._finished:
            return self._answer_finished()
        return () if self._aligner is None else self._follow(self._aligner.handle(event))

    def _on_ended(self, event: Ended) -> Commands:
        checkpoint_id = event.checkpoint_id
        self._over = max(self._over, checkpoint_id)
        commands: list[StepCommand] = []
        batch = self._book.batch_of(checkpoint_id)
        if batch is not None and event.decided:
            # The next cut does not commit what the decided cut holds.
            self._staged = [
                committable for committable in self._staged if committable.batch > batch
            ]
        commands += self._book.forget(checkpoint_id)
        self._announced.pop(checkpoint_id, None)
        if self.injector is not None:
            self.injector.withdraw(checkpoint_id)
        if not event.decided and self._emitted == checkpoint_id and not self._finished:
            barrier = Barrier(checkpoint_id, self._generation).cancelled()
            commands.append(Append(barrier))
        if checkpoint_id in self._gates and not event.decided:
            self._gates.discard(checkpoint_id)
            commands += () if self._gates else (OpenGate(checkpoint_id),)
        if self._aligner is not None:
            commands += self._follow(self._aligner.handle(AttemptOver(checkpoint_id)))
        return tuple(commands)

    def _on_end_reached(self, _: EndReached) -> Commands:
        problem = self._why_not_ended()
        if problem:
            message = f"{self.spec.step} {problem}."
            raise ProtocolViolation(message)
        self._finished = True
        return (Append(EndOfInput()), *self._answer_finished())

    def _why_not_ended(self) -> str:
        """Return why the step cannot end now; empty if it can."""
        if self._finished:
            return "has ended already"
        if self._last != self._committed:
            return "cannot end with an uncommitted batch"
        if self._owes_batch:
            return "cannot end while a batch is owed"
        if self._aligner is not None and not self._aligner.drained:
            return "cannot end before its inputs are drained"
        return ""

    def _answer_finished(self) -> Commands:
        """Answer attempts whose barrier the step did not emit with the final snapshot."""
        commands: Commands = ()
        for checkpoint_id, barrier in self._announced.items():
            if checkpoint_id <= self._emitted or checkpoint_id in self._book:
                continue
            if self._aligner is not None:
                commands += self._follow(self._aligner.handle(Announced(barrier)))
            else:
                assert self.injector is not None
                self.injector.withdraw(checkpoint_id)
                commands += self._note(barrier, Cause.ALIGNED)
        return commands

    def _on_close(self, _: Close) -> Commands:
        self._closed = True
        return ()

    # -- facts

    @property
    def barrier_waiting(self) -> bool:
        """Whether a source has a barrier to take; cheap enough to check before every batch."""
        return self.injector is not None and self.injector.waiting > 0

    @property
    def last(self) -> BatchId:
        return self._last

    @property
    def may_append(self) -> bool:
        """Whether a source's gate is open and the generation runs."""
        return not (self._gates or self._closed or self._finished)

    @property
    def may_end(self) -> bool:
        """Whether `EndReached` would be accepted now."""
        return not self._closed and not self._why_not_ended()

    @property
    def owes_batch(self) -> bool:
        """Whether a batch without new data is due."""
        return self._owes_batch

    @property
    def watermark_ms(self) -> int | None:
        return self._watermark_ms

    @property
    def committed(self) -> BatchId:
        """The last batch that the engine has made durable."""
        return self._committed

    @property
    def awaits_commit(self) -> bool:
        """Whether an attempt waits until the engine has made the last batch durable."""
        return self._book.awaits_commit

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def aligner(self) -> Aligner | None:
        """The aligner of a consumer; read-only."""
        return self._aligner

    @property
    def staged(self) -> tuple[Committable, ...]:
        """Output that the writer has staged and no decided cut holds."""
        return tuple(self._staged)

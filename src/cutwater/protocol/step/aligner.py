"""The aligner: when a step emits its own barrier, for any number of inputs (sections 4 and 5).

Holding is the absence of a release: a reader stops by itself before an unreleased barrier (rule
F6). So the aligner only counts. Aligned: the step emits the barrier when it is exactly at the
barrier on every input. Overtaking: after the alignment timeout (measured from the start of the
attempt, F20), when forced, or when the barrier arrives flagged UNALIGNED (never held, F18b), the
step emits the barrier at once and records the inputs up to their own barriers.

EndOfInput acts as the barrier of every attempt at its place (F2). The end of an attempt is sent
directly, not carried by data (F18), and releases everything the attempt held. Work per event does
not depend on the number of inputs. Upholds I1, I2, I3, I4, I6 and I12.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_CHECKPOINT, CheckpointId, Generation, InputId
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.messages import Barrier, Place
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.step import aligner_events as events
from cutwater.protocol.step.in_flight import Recording

Commands = tuple[events.AlignerCommand, ...]


@dataclass(slots=True)
class _Attempt:
    barrier: Barrier
    state: events.AlignmentState = events.ALIGNMENT.initial
    places: dict[InputId, Place] = field(default_factory=dict)
    reached: int = 0
    behind_bytes: int = 0
    recording: Recording | None = None


class Aligner:
    """Decides, for one step with channel inputs, when the step emits its barrier."""

    def __init__(
        self,
        positions: Mapping[InputId, Place],
        options: UnalignedOptions,
        *,
        generation: Generation,
        is_sink: bool = False,
        max_concurrent: int = 1,
    ) -> None:
        """Create the aligner of one step; the positions fix its inputs, at least one.

        A sink step accepts only aligned checkpoints and so never overtakes.
        """
        if not positions:
            message = "an aligner needs at least one input; a source has an injector instead."
            raise ProtocolViolation(message)
        self._positions = dict(positions)
        self._options = options
        self._generation = generation
        self._is_sink = is_sink
        self._max_concurrent = max_concurrent
        self._ends: dict[InputId, Place] = {}
        self._attempts: dict[CheckpointId, _Attempt] = {}
        self._over: set[CheckpointId] = set()
        self._floor = NO_CHECKPOINT
        self._handlers: dict[type, Callable[[Any], Commands]] = {
            events.Announced: self._on_announced,
            events.BarrierSeen: self._on_barrier,
            events.EndSeen: self._on_end,
            events.LogGrew: self._on_grew,
            events.Advanced: self._on_advanced,
            events.AttemptOver: lambda event: self._end(event.checkpoint_id),
            events.Tick: self._on_tick,
        }

    def handle(self, event: events.AlignerEvent) -> Commands:
        """Return the commands to carry out, in order.

        Raises:
            ProtocolViolation: If the event is not possible now; the aligner has not changed.
        """
        return self._handlers[type(event)](event)

    # -- events

    def _on_announced(self, event: events.Announced) -> Commands:
        self._check_epoch(event.barrier)
        if event.barrier.is_cancel:
            message = "a CANCEL does not start an attempt."
            raise ProtocolViolation(message)
        if event.barrier.checkpoint_id in self._attempts:
            return ()
        attempt, commands = self._open(event.barrier)
        return commands if attempt is None else commands + self._consider()

    def _on_barrier(self, event: events.BarrierSeen) -> Commands:
        source, barrier, place = event.input, event.barrier, event.place
        checkpoint_id = barrier.checkpoint_id
        self._check_input(source)
        self._check_epoch(barrier)
        if barrier.is_cancel:
            return self._end(checkpoint_id)
        attempt = self._attempts.get(checkpoint_id)
        if attempt is not None and source in attempt.places:
            if attempt.places[source] != place:
                message = f"barrier {checkpoint_id} appears twice on input {source}."
                raise ProtocolViolation(message)
            return ()
        if attempt is None and self._is_over(checkpoint_id):
            return ()
        self._check_barrier(event, attempt)
        commands: Commands = ()
        if attempt is None:
            attempt, commands = self._open(barrier)
            if attempt is None:
                return commands
        if barrier.is_unaligned:
            attempt.barrier = barrier
        return commands + self._place(attempt, source, place) + self._consider()

    def _on_end(self, event: events.EndSeen) -> Commands:
        source, place = event.input, event.place
        self._check_input(source)
        if source in self._ends or place.position < self._positions[source].position:
            message = f"input {source} cannot end at {place}."
            raise ProtocolViolation(message)
        self._ends[source] = place
        commands: Commands = ()
        for attempt in tuple(self._attempts.values()):
            if source not in attempt.places:
                commands += self._place(attempt, source, place)
        return commands + self._consider()

    def _on_grew(self, event: events.LogGrew) -> Commands:
        self._check_input(event.input)
        commands: Commands = ()
        for attempt in self._attempts.values():
            if attempt.state is events.AlignmentState.RECORDING and attempt.recording is not None:
                attempt.recording.grow(event.input, event.end)
                commands += self._check_recording(attempt)
        return commands

    def _on_advanced(self, event: events.Advanced) -> Commands:
        for source, place in event.moved.items():
            self._check_move(source, place)
        for source, place in event.moved.items():
            read_bytes = place.log_bytes - self._positions[source].log_bytes
            moved = place != self._positions[source]
            self._positions[source] = place
            for attempt in self._attempts.values():
                if moved and source in attempt.places:
                    attempt.behind_bytes -= read_bytes
                    attempt.reached += attempt.places[source] == place
        return self._consider()

    def _on_tick(self, event: events.Tick) -> Commands:
        return self._consider(event.now_ms)

    # -- checks

    def _check_input(self, source: InputId) -> None:
        if source not in self._positions:
            message = f"{source} is not an input of this step."
            raise ProtocolViolation(message)

    def _check_epoch(self, barrier: Barrier) -> None:
        if barrier.epoch != self._generation:
            message = (
                f"barrier {barrier.checkpoint_id} is of generation {barrier.epoch}; "
                f"this is generation {self._generation}."
            )
            raise ProtocolViolation(message)

    def _check_barrier(self, event: events.BarrierSeen, attempt: _Attempt | None) -> None:
        source, barrier = event.input, event.barrier
        problem = ""
        if source in self._ends:
            problem = "comes after the end of the input"
        elif event.place.position < self._earliest(attempt, source):
            problem = f"at {event.place}: the input was read past barrier {barrier.checkpoint_id}"
        elif attempt is not None and barrier.is_unaligned and not attempt.barrier.may_overtake:
            problem = "has overtaken although it may not"
        if problem:
            message = f"input {source}: barrier {barrier.checkpoint_id} {problem}."
            raise ProtocolViolation(message)

    def _check_move(self, source: InputId, place: Place) -> None:
        self._check_input(source)
        held = (
            attempt.places[source].position
            for attempt in self._attempts.values()
            if attempt.state is events.AlignmentState.ALIGNING and source in attempt.places
        )
        end = self._ends.get(source, place).position
        limit = min((*held, end))
        if not self._positions[source].position <= place.position <= limit:
            message = f"input {source} cannot move to {place}: it is held at @{limit}."
            raise ProtocolViolation(message)

    def _earliest(self, attempt: _Attempt | None, source: InputId) -> int:
        """Return the lowest position at which a barrier of the attempt can still be."""
        if attempt is None or attempt.state is events.AlignmentState.ALIGNING:
            return self._positions[source].position
        if attempt.recording is not None:
            return attempt.recording.start(source).position
        return 0

    def _is_over(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id <= self._floor or checkpoint_id in self._over

    # -- attempts

    def _open(self, barrier: Barrier) -> tuple[_Attempt | None, Commands]:
        # Where only one may be open, seeing the next ends the last (F28). With several, an event
        # says which one has ended: guessing could end the wrong one.
        checkpoint_id = barrier.checkpoint_id
        if self._is_over(checkpoint_id):
            return None, ()
        commands: Commands = ()
        if self._max_concurrent == 1 and self._attempts:
            oldest = next(iter(self._attempts))
            if checkpoint_id < oldest:
                return None, self._end(checkpoint_id)
            commands = self._end(oldest)
        attempt = _Attempt(barrier)
        for source, end in self._ends.items():
            self._note_place(attempt, source, end)
        self._attempts[checkpoint_id] = attempt
        self._attempts = dict(sorted(self._attempts.items()))
        return attempt, commands

    def _end(self, checkpoint_id: CheckpointId) -> Commands:
        if self._is_over(checkpoint_id):
            # A repeated end, or the end of a later attempt came first: its barrier must not hold.
            return (events.Release(checkpoint_id),)
        attempt = self._attempts.pop(checkpoint_id, None)
        if attempt is not None:
            events.ALIGNMENT.next(attempt.state, events.AlignmentTrigger.END)
        self._over.add(checkpoint_id)
        lowest_open = next(iter(self._attempts), None)
        for over in sorted(self._over):
            if lowest_open is None or over < lowest_open:
                self._floor = over
        self._over = {over for over in self._over if over > self._floor}
        return (events.Release(checkpoint_id), *self._consider())

    def _place(self, attempt: _Attempt, source: InputId, place: Place) -> Commands:
        """Note where the barrier of an open attempt is on one input."""
        if attempt.state is events.AlignmentState.RECORDING and attempt.recording is not None:
            attempt.recording.close(source, place)
            attempt.places[source] = place
            return self._check_recording(attempt)
        self._note_place(attempt, source, place)
        return ()

    def _note_place(self, attempt: _Attempt, source: InputId, place: Place) -> None:
        """Count the bytes before a barrier incrementally, not from scratch at every event."""
        position = self._positions[source]
        attempt.places[source] = place
        attempt.reached += position == place
        attempt.behind_bytes += place.log_bytes - position.log_bytes

    def _consider(self, now_ms: int | None = None) -> Commands:
        """Emit every barrier that may be emitted, oldest attempt first."""
        commands: Commands = ()
        for attempt in self._attempts.values():
            if attempt.state is not events.AlignmentState.ALIGNING:
                continue
            if attempt.reached == len(self._positions):
                commands += self._aligned(attempt)
                continue
            cause = self._overtake_cause(attempt, now_ms)
            if cause is not None:
                commands += self._overtake(attempt, cause)
            break
        return commands

    def _aligned(self, attempt: _Attempt) -> Commands:
        attempt.state = events.ALIGNMENT.next(attempt.state, events.AlignmentTrigger.ALL_REACHED)
        checkpoint_id = attempt.barrier.checkpoint_id
        return (
            events.Emit(attempt.barrier, events.Cause.ALIGNED),
            events.Captured(checkpoint_id, (), dict(attempt.places)),
            events.Release(checkpoint_id),
        )

    # -- overtaking

    def _overtake_cause(self, attempt: _Attempt, now_ms: int | None) -> events.Cause | None:
        options, barrier = self._options, attempt.barrier
        if barrier.is_unaligned:
            return events.Cause.UPSTREAM
        if not (self._may_overtake(barrier) and attempt.places):
            return None
        if options.forced:
            return events.Cause.FORCED
        patience_ends_ms = barrier.started_at_ms + options.alignment_timeout_ms
        return events.Cause.TIMEOUT if now_ms is not None and now_ms >= patience_ends_ms else None

    def _may_overtake(self, barrier: Barrier) -> bool:
        return self._options.enabled and not self._is_sink and barrier.may_overtake

    def _overtake(self, attempt: _Attempt, cause: events.Cause) -> Commands:
        if not self._may_overtake(attempt.barrier):
            return self._decline(
                attempt, FailureReason.SINK_CANNOT_OVERTAKE, events.AlignmentTrigger.REFUSE
            )
        if attempt.behind_bytes > self._options.max_inflight_bytes:
            # A barrier that has overtaken may not be held; any other can still be aligned
            # while the backlog shrinks, until the attempt's deadline.
            if cause is events.Cause.UPSTREAM:
                return self._decline(
                    attempt, FailureReason.INFLIGHT_TOO_LARGE, events.AlignmentTrigger.REFUSE
                )
            return ()
        attempt.state = events.ALIGNMENT.next(attempt.state, events.AlignmentTrigger.OVERTAKE)
        attempt.recording = recording = Recording.begin(self._positions, attempt.places)
        checkpoint_id = attempt.barrier.checkpoint_id
        return (
            events.Emit(attempt.barrier.overtaking(), cause),
            *(events.Protect(checkpoint_id, source, start) for source, start in recording.starts()),
            events.Release(checkpoint_id),
            *self._check_recording(attempt),
        )

    def _check_recording(self, attempt: _Attempt) -> Commands:
        recording = attempt.recording
        assert recording is not None
        if recording.size_bytes > self._options.max_inflight_bytes:
            return self._decline(
                attempt, FailureReason.INFLIGHT_TOO_LARGE, events.AlignmentTrigger.OVERFLOW
            )
        if not recording.complete:
            return ()
        attempt.state = events.ALIGNMENT.next(attempt.state, events.AlignmentTrigger.ALL_RECORDED)
        checkpoint_id = attempt.barrier.checkpoint_id
        return (events.Captured(checkpoint_id, recording.ranges(), dict(attempt.places)),)

    def _decline(
        self, attempt: _Attempt, reason: FailureReason, trigger: events.AlignmentTrigger
    ) -> Commands:
        attempt.state = events.ALIGNMENT.next(attempt.state, trigger)
        checkpoint_id = attempt.barrier.checkpoint_id
        return (events.Decline(checkpoint_id, reason), events.Release(checkpoint_id))

    # -- facts

    @property
    def positions(self) -> Mapping[InputId, Place]:
        """The step's position on each input: the end of its last appended batch."""
        return dict(self._positions)

    def progress(self, checkpoint_id: CheckpointId) -> events.AlignmentProgress | None:
        """Return how far the inputs are from the barrier of an attempt; None if it is not open.

        May be called from any thread: it reads copies, which may be one event old.
        """
        attempt = self._attempts.get(checkpoint_id)
        if attempt is None:
            return None
        places, positions = dict(attempt.places), dict(self._positions)
        aligned = {
            source
            for source, place in places.items()
            if positions[source].position >= place.position
        }
        recording = attempt.recording
        return events.AlignmentProgress(
            attempt.state,
            tuple(sorted(aligned)),
            tuple(sorted(set(positions) - aligned)),
            sum(
                place.log_bytes - positions[source].log_bytes
                for source, place in places.items()
                if source not in aligned
            ),
            0 if recording is None else recording.size_bytes,
        )

    @property
    def deadline_ms(self) -> int | None:
        """When the alignment timeout of the oldest held attempt ends, for the caller's timer.

        May be read from any thread: it reads a copy, which may be one event old.
        """
        for attempt in tuple(self._attempts.values()):
            if attempt.state is events.AlignmentState.ALIGNING:
                if attempt.places and self._may_overtake(attempt.barrier):
                    return attempt.barrier.started_at_ms + self._options.alignment_timeout_ms
                return None
        return None

    def is_recording(self, source: InputId) -> bool:
        """Return whether this input is being recorded, so that `LogGrew` is needed."""
        return any(
            attempt.state is events.AlignmentState.RECORDING
            and attempt.recording is not None
            and attempt.recording.is_open(source)
            for attempt in self._attempts.values()
        )

    def would_align(self, moved: Mapping[InputId, Place]) -> bool:
        """Return whether a batch that ends at these places would let a held barrier out (F24)."""
        for attempt in self._attempts.values():
            if attempt.state is events.AlignmentState.ALIGNING:
                newly = sum(
                    attempt.places.get(source) == place and self._positions[source] != place
                    for source, place in moved.items()
                )
                return newly > 0 and attempt.reached + newly == len(self._positions)
        return False

    @property
    def drained(self) -> bool:
        """Whether every input has ended and has been read to its end."""
        return len(self._ends) == len(self._positions) and all(
            self._positions[source] == end for source, end in self._ends.items()
        )

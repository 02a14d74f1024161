"""Mutations of how a cut is made: barriers, alignment, overtaking, snapshots, channels.

See `sabotage` for what they are for. Original methods are taken before patching and called where a
mutation changes only one thing about them.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401, SLF001

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cutwater.ids import CheckpointId, InputId, ReaderId
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.cut import StepSnapshot
from cutwater.protocol.messages import Barrier, Event, Place
from cutwater.protocol.step.aligner import Aligner, Commands
from cutwater.protocol.step.aligner_events import (
    AlignmentState,
    AttemptOver,
    BarrierSeen,
    EndSeen,
    Release,
)
from cutwater.protocol.step.events import Ended
from cutwater.protocol.step.in_flight import Recording
from cutwater.protocol.step.machine import Step
from cutwater.protocol.step.snapshots import Restored, SnapshotBook
from cutwater.runtime.channel import Channel
from cutwater.runtime.output import Written
from cutwater.runtime.step import RunningStep
from cutwater.testing.simulation.engine import SimulatedOutput, SimulatedStep
from cutwater.testing.simulation.sabotage.registry import Patch, sabotage
from cutwater.testing.simulation.sinks import pack


@sabotage("last-committed", "F1")
def last_committed() -> list[Patch]:
    """Snapshot the last committed batch although a later one is already in the channel."""
    original = Step._note

    def note(self: Step, *args: Any) -> Any:
        last, self._last = self._last, self._committed
        try:
            return original(self, *args)
        finally:
            self._last = last

    return [(Step, "_note", note)]


@sabotage("positions-from-latest-offset", "F1")
def positions_from_latest_offset() -> list[Patch]:
    """Take positions from the batch that is planned, not from the one that was appended."""
    plan, note = SimulatedStep.plan_batch, Step._note
    planned: dict[int, Mapping[InputId, Place]] = {}

    def remember(self: SimulatedStep, ends: Mapping[InputId, Place], offset: int) -> Any:
        planned[id(self.machine)] = ends
        return plan(self, ends, offset)

    def note_planned(self: Step, *args: Any) -> Any:
        aligner = self._aligner
        if aligner is None:
            return note(self, *args)
        positions = aligner._positions
        aligner._positions = {**positions, **planned.get(id(self), {})}
        try:
            return note(self, *args)
        finally:
            aligner._positions = positions

    return [(SimulatedStep, "plan_batch", remember), (Step, "_note", note_planned)]


@sabotage("end-of-input-always-aligned", "F2")
def end_of_input_always_aligned() -> list[Patch]:
    """Treat an ended input as aligned wherever the step stands on it."""
    original = Aligner._on_end

    def on_end(self: Aligner, event: EndSeen) -> Commands:
        return original(self, EndSeen(event.input, self._positions[event.input]))

    return [(Aligner, "_on_end", on_end), (Aligner, "_check_move", lambda *_: None)]


@sabotage("end-of-input-restored", "F2")
def end_of_input_restored() -> list[Patch]:
    """Let a step that had ended stay ended after a restore."""
    original = Restored.from_snapshot
    ended: set[str] = set()

    def from_snapshot(snapshot: StepSnapshot) -> Restored:
        (ended.add if snapshot.finished else ended.discard)(snapshot.step)
        return original(snapshot)

    def source_ended(self: SimulatedStep) -> bool:
        return self.is_at_end or self.name in ended

    return [
        (Restored, "from_snapshot", from_snapshot),
        (SimulatedStep, "source_ended", source_ended),
    ]


@sabotage("default-open-limit", "F6")
def default_open_limit() -> list[Patch]:
    """Let a reader pass a barrier that its step has not noticed yet."""
    original = ChannelLog.limit

    def limit(self: ChannelLog, reader: ReaderId) -> Place:
        place = original(self, reader)
        state = self._readers[reader]
        return place if state.next_hold < state.next_told else self._end

    return [(ChannelLog, "limit", limit)]


@sabotage("skip-the-hold", "section 4")
def skip_the_hold() -> list[Patch]:
    """Release an input as soon as its barrier is seen."""
    original = Aligner._place

    def place(self: Aligner, attempt: Any, source: InputId, at: Place) -> Commands:
        return (*original(self, attempt, source, at), Release(attempt.barrier.checkpoint_id))

    return [(Aligner, "_place", place), (Aligner, "_check_move", lambda *_: None)]


@sabotage("forward-at-once", "F11")
def forward_at_once() -> list[Patch]:
    """Let a step pass the barrier on when the first input shows it."""
    original = Aligner._consider

    def consider(self: Aligner, now_ms: int | None = None) -> Commands:
        for attempt in self._attempts.values():
            if attempt.state is AlignmentState.ALIGNING and attempt.places:
                attempt.reached = len(self._positions)
        return original(self, now_ms)

    return [(Aligner, "_consider", consider)]


@sabotage("compare-no-ids", "I1", mode="concurrent")
def compare_no_ids() -> list[Patch]:
    """Count any barrier for the attempt that happens to be open."""
    original = Aligner._on_barrier

    def on_barrier(self: Aligner, event: BarrierSeen) -> Commands:
        current = next(iter(self._attempts), None)
        if current is not None and not event.barrier.is_cancel:
            event = replace(event, barrier=replace(event.barrier, checkpoint_id=current))
        return original(self, event)

    return [(Aligner, "_on_barrier", on_barrier)]


@sabotage("ended-attempt-opens-again", "F18")
def ended_attempt_opens_again() -> list[Patch]:
    """Forget which attempts are over, so a late barrier holds its input again."""

    def end(self: Aligner, checkpoint_id: CheckpointId) -> Commands:
        self._attempts.pop(checkpoint_id, None)
        return ()

    return [(Aligner, "_end", end)]


@sabotage("holds-survive-the-end", "F18")
def holds_survive_the_end() -> list[Patch]:
    """End an attempt without releasing what it holds."""
    original = Aligner._end

    def end(self: Aligner, checkpoint_id: CheckpointId) -> Commands:
        return tuple(
            command
            for command in original(self, checkpoint_id)
            if command != Release(checkpoint_id)
        )

    return [(Aligner, "_end", end)]


@sabotage("cancel-behind-data", "F18")
def cancel_behind_data() -> list[Patch]:
    """Let the end of an attempt travel behind data that the held step cannot read."""
    tell, open_attempt = RunningStep.tell, Aligner._open

    def tell_decided(self: RunningStep, event: Any) -> None:
        if not isinstance(event, Ended) or event.decided:
            tell(self, event)

    def on_barrier_open(self: Aligner, barrier: Barrier) -> Any:
        return (None, ()) if self._attempts else open_attempt(self, barrier)

    return [(RunningStep, "tell", tell_decided), (Aligner, "_open", on_barrier_open)]


@sabotage("hold-an-unaligned-barrier", "F18b")
def hold_an_unaligned_barrier() -> list[Patch]:
    """Treat a barrier that has overtaken like any other."""
    original = Aligner._overtake_cause

    def cause(self: Aligner, attempt: Any, now_ms: int | None) -> Any:
        if attempt.barrier.is_unaligned and not self._options.forced:
            attempt.barrier = replace(attempt.barrier, flags=type(attempt.barrier.flags)(0))
        return original(self, attempt, now_ms)

    return [(Aligner, "_overtake_cause", cause)]


@sabotage("recording-stops-at-the-snapshot", "section 5")
def recording_stops_at_the_snapshot() -> list[Patch]:
    """Record nothing of an input whose barrier was not visible at the snapshot."""
    original = Recording.begin

    def begin(positions: Any, places: Any) -> Recording:
        return original(positions, {**positions, **places})

    return [(Recording, "begin", begin)]


@sabotage("drop-an-in-flight-range", "I3")
def drop_an_in_flight_range() -> list[Patch]:
    """Forget the in-flight Events of one input."""
    original = Recording.ranges
    return [(Recording, "ranges", lambda self: original(self)[1:])]


@sabotage("record-without-bound", "F21")
def record_without_bound() -> list[Patch]:
    """Record in-flight data whatever its size."""
    original = Aligner.__init__

    def init(self: Aligner, positions: Any, options: Any, **more: Any) -> None:
        original(self, positions, replace(options, max_inflight_bytes=10**9), **more)

    return [(Aligner, "__init__", init)]


@sabotage("recorded-files-freed", "F26")
def recorded_files_freed() -> list[Patch]:
    """Free Events that an attempt is still recording."""
    return [(ChannelLog, "protect", lambda *_: None)]


@sabotage("acknowledge-before-commit", "section 6")
def acknowledge_before_commit() -> list[Patch]:
    """Store and acknowledge a snapshot whose batch is not committed yet."""
    original = SnapshotBook.note

    def note(self: SnapshotBook, snapshot: StepSnapshot, *, committed: bool, captured: bool) -> Any:
        return original(self, snapshot, committed=committed or True, captured=captured)

    return [(SnapshotBook, "note", note)]


@sabotage("commit-callback-frees-room", "F17")
def commit_callback_frees_room() -> list[Patch]:
    """Free room when the engine constructs its next batch, not when one is appended."""
    advance, plan = Channel.advance, SimulatedStep.plan_batch
    waiting: dict[ReaderId, tuple[Channel, Place]] = {}

    def moved(self: Channel, reader: ReaderId, place: Place) -> None:
        waiting[reader] = (self, place)

    def planned(self: SimulatedStep, ends: Any, offset: int) -> Any:
        for source, channel in self.wiring.inputs.items():
            known, place = waiting.pop(self.reader(source), (None, None))
            if known is channel and place is not None:
                advance(channel, self.reader(source), place)
        return plan(self, ends, offset)

    return [(Channel, "advance", moved), (SimulatedStep, "plan_batch", planned)]


@sabotage("empty-events", "F23")
def empty_events() -> list[Patch]:
    """Append an Event for a batch without rows."""
    original = SimulatedOutput.write

    def write(self: SimulatedOutput, rows: Any, batch: Any) -> Written:
        if rows:
            return original(self, rows, batch)
        name = f"b{batch:06d}/rows"
        file = self._channel.data / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pack(rows))
        return Written(0, Event(batch, 1, 10, (name,)))

    return [(SimulatedOutput, "write", write)]


@sabotage("no-tick-after-restore", "F22", shape="window-line")
def no_tick_after_restore() -> list[Patch]:
    """Do not run the batch that was owed when the snapshot was taken."""
    original = Restored.from_snapshot

    def from_snapshot(snapshot: StepSnapshot) -> Restored:
        return original(replace(snapshot, owes_batch=False))

    return [(Restored, "from_snapshot", from_snapshot)]


@sabotage("single-step-restart", "F10", faults=("step failure",))
def single_step_restart() -> list[Patch]:
    """Restart one failed step in place: its batch runs again, its Event stays."""
    appended = SimulatedStep._append

    def append(self: SimulatedStep, event: Any) -> None:
        appended(self, event)
        if self.fails and self._batch is not None:
            self.fails = False
            self._batch.state = pack(self.evaluate(self._batch))

    return [(SimulatedStep, "_append", append)]


@sabotage("drain-gate-open", "F30")
def drain_gate_open() -> list[Patch]:
    """Let sources go on behind the barrier of a stop with savepoint."""
    original = Step._emit

    def emit(self: Step, barrier: Barrier, cause: Any) -> Any:
        commands = original(self, barrier, cause)
        self._gates.clear()
        return commands

    return [(Step, "_emit", emit)]


@sabotage("end-told-to-sources-only", "I6")
def end_told_to_sources_only() -> list[Patch]:
    """Tell consumers of an attempt's end, but never let it reach their aligners."""
    original = Aligner.handle

    def handle(self: Aligner, event: Any) -> Commands:
        return () if isinstance(event, AttemptOver) else original(self, event)

    original_open = Aligner._open

    def open_attempt(self: Aligner, barrier: Barrier) -> Any:
        self._max_concurrent = 10**6
        return original_open(self, barrier)

    return [(Aligner, "handle", handle), (Aligner, "_open", open_attempt)]

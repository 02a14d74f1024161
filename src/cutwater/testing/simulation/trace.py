"""One line for each action, short enough to read a thousand of them.

    time  process  actor          what
    1204  p0g1     s              append barrier 3

Time is simulated milliseconds; p0g1 is process 0 in generation 1. `>` marks an event of a
machine, `!` a command. `@7` is a place in a channel: seven Events come before it. `s@7` is that
place on the input from s.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from cutwater.ids import NO_BATCH, InputId
from cutwater.protocol import recovery
from cutwater.protocol.checkpoint import events as coordinator
from cutwater.protocol.commit import CommitSink, RecordCommit
from cutwater.protocol.cut import Cut, StepSnapshot
from cutwater.protocol.messages import Barrier, EndOfInput, Event, Flag, Message, Place, Watermark
from cutwater.protocol.step import aligner_events as alignment
from cutwater.protocol.step import events as step

LEGEND = "\n".join((__doc__ or "").splitlines()[2:])


def describe(event: object) -> str:
    """Return the short form of anything that happens in the world."""
    for known in (_describe_step, _describe_alignment, _describe_coordinator, _describe_recovery):
        text = known(event)
        if text is not None:
            return text
    return event if isinstance(event, str) else _plain(event)


def _plain(event: object) -> str:
    if not is_dataclass(event):
        return str(event)
    parts = (f"{field.name}={getattr(event, field.name)}" for field in fields(event))
    return f"{type(event).__name__} {' '.join(parts)}"[:160]


def _barrier(barrier: Barrier) -> str:
    names = "".join(f" {flag.name}" for flag in Flag if flag in barrier.flags)
    return f"barrier {barrier.checkpoint_id}{names}"


def _message(message: Message) -> str:
    match message:
        case Event(batch, rows):
            return f"Event of batch {batch}, {rows} rows"
        case Watermark(value_ms):
            return f"watermark {value_ms}"
        case EndOfInput():
            return "end of input"
        case _:
            return _barrier(message)


def _places(places: Mapping[InputId, Place]) -> str:
    return " ".join(f"{source.channel}{place}" for source, place in places.items())


def _snapshot(snapshot: StepSnapshot) -> str:
    flying = sum(len(part.events) for part in snapshot.in_flight)
    batch = "no batch yet" if snapshot.batch == NO_BATCH else f"batch {snapshot.batch}"
    text = f"snapshot {snapshot.checkpoint_id} of {snapshot.step}: {batch}"
    where = _places(snapshot.positions)
    return f"{text}{' ' if where else ''}{where}{f', {flying} in flight' if flying else ''}"


def _cut(cut: Cut) -> str:
    kind = "aligned" if cut.is_aligned else f"{cut.in_flight_bytes} bytes in flight"
    point = "commit point" if cut.commit_point else "recovery point"
    return f"checkpoint {cut.checkpoint_id} ({kind}, {point})"


def _describe_step(event: object) -> str | None:  # noqa: PLR0911 - one line per kind
    match event:
        case step.BatchAppended(batch, result, moved):
            rows = 0 if result is None else result.rows
            return f"> batch {batch} done, {rows} rows to pass on {_places(moved)}".rstrip()
        case step.BatchCommitted(batch):
            return f"> batch {batch} committed"
        case step.Poll():
            return "> polls for a barrier"
        case step.EndReached():
            return "> has reached its end"
        case step.Stored(checkpoint_id):
            return f"> snapshot {checkpoint_id} is stored"
        case step.Ended(checkpoint_id, decided):
            return f"> attempt {checkpoint_id} is over, {'decided' if decided else 'not decided'}"
        case step.Append(message):
            return f"! append {_message(message)}"
        case step.Pin(checkpoint_id, batch):
            return f"! pin the files of batch {batch} for {checkpoint_id}"
        case step.Upload(snapshot, ranges):
            flying = sum(part.count for part in ranges)
            return f"! store {_snapshot(snapshot)}{f', {flying} in flight' if flying else ''}"
        case step.Acknowledge(snapshot):
            return f"! acknowledge {_snapshot(snapshot)}"
        case step.Forget(checkpoint_id):
            return f"! drop the pins of {checkpoint_id}"
    return None


def _describe_alignment(event: object) -> str | None:
    match event:
        case alignment.Announced(barrier):
            return f"> {_barrier(barrier)} is announced"
        case alignment.BarrierSeen(source, barrier, place):
            return f"> sees {_barrier(barrier)} at {source.channel}{place}"
        case alignment.EndSeen(source, place):
            return f"> sees the end of {source.channel}{place}"
        case alignment.LogGrew(source, end):
            return f"> {source.channel} grew to {end}"
        case alignment.Release(checkpoint_id):
            return f"! release barrier {checkpoint_id}"
        case alignment.Protect(checkpoint_id, source, start):
            return f"! keep {source.channel} from {start} for {checkpoint_id}"
        case alignment.Decline(checkpoint_id, reason):
            return f"! decline {checkpoint_id}: {reason.sentence}"
        case alignment.Tick(now_ms):
            return f"> it is {now_ms} ms"
    return None


def _describe_coordinator(event: object) -> str | None:  # noqa: PLR0911 - one line per kind
    match event:
        case coordinator.Clock(now_ms):
            return f"> it is {now_ms} ms"
        case coordinator.Acknowledged(snapshot):
            return f"> acknowledged: {_snapshot(snapshot)}"
        case coordinator.AnswerAck(_, _, result):
            return f"! that acknowledgement is {result.name}"
        case coordinator.StartAttempt(barrier):
            return f"! start {_barrier(barrier)}"
        case coordinator.EndAttempt(checkpoint_id, decided, reason, detail):
            why = "decided" if reason is None else f"{reason.sentence}; {detail}"
            return f"! attempt {checkpoint_id} is over: {why if not decided else 'decided'}"
        case coordinator.PublishManifest(cut):
            return f"! write the manifest of {_cut(cut)}"
        case coordinator.CreateDecision(slot, cut):
            return f"! decide {_cut(cut)} in slot {slot}"
        case coordinator.DecisionMade(checkpoint_id, outcome):
            return f"> decision of {checkpoint_id}: {outcome.name}"
        case CommitSink(permit, sink, committables):
            rows = sum(committable.rows for committable in committables)
            return f"! {sink} commits {rows} rows of slot {permit.slot}"
        case RecordCommit(permit, versions):
            return f"! record the commit of slot {permit.slot}: versions {dict(versions)}"
    return None


def _describe_recovery(event: object) -> str | None:
    match event:
        case recovery.ClaimGeneration(claim):
            return f"! claim generation {claim.generation} in slot {claim.slot}"
        case recovery.ReadManifest(decision):
            return f"! read the manifest of {decision.checkpoint_id}"
        case recovery.VerifyObjects(decision):
            return f"! verify the objects of {decision.checkpoint_id}"
        case recovery.RepeatCommit(decision):
            return f"! repeat the commit of slot {decision.slot}"
        case recovery.Restore(generation, cut):
            return f"! generation {generation} from {'nothing' if cut is None else _cut(cut)}"
        case recovery.Refuse(reason, decision, damages):
            found = ", ".join(f"{damage.name} {damage.problem}" for damage in damages)
            which = "the log" if decision is None else decision.checkpoint_id
            return f"! refuse {which}: {reason.name} {found}"
    return None

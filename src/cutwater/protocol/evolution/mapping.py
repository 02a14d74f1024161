"""Restore a cut into changed code: what resumes, what is new, what is gone, what is refused.

A cut with nothing in flight is one line through the whole pipeline: every record before it has
passed through all of the old code, every record after it will pass through all of the new. So state
is found by the name of its step, a position by the name of its source, and a sink by its own name;
the wiring between steps may change freely. With data in flight the wiring must be the same, since
the data between two steps belongs to that wiring. Whatever loses its past, or starts without one,
must be allowed (PROTOCOL.md section 15, rule F16). A restore carries out the `Change`; a user can
read it first. Manifests of the first versions hold no identities; their cuts are restored only into
the same shape. Upholds I3 and I5.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from cutwater.ids import NO_BATCH, BatchId, ChannelId, InputId, StepId
from cutwater.protocol.cut import Cut, InFlight, StepSnapshot
from cutwater.protocol.evolution.identity import (
    NO_OFFSET,
    InputIdentity,
    InputKind,
    StepIdentity,
    columns_missing,
    runs_on_older_spark,
    state_differences,
)
from cutwater.protocol.messages import START, Place

_SAVEPOINT: Final = (
    "Run the old code once more and stop it with a savepoint, which leaves nothing in flight"
)
KEEP_STATE: Final = (
    "Change it back, or give the step another name, which starts it empty "
    "(--allow-new --allow-dropped)"
)
_ALLOW_NEW: Final = "Allow it with --allow-new"
_ALLOW_DROPPED: Final = "Allow it with --allow-dropped, or bring it back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """What the user has allowed a restore to do.

    Attributes:
        new: Steps with state, sources and sinks that the cut does not know may start.
        dropped: Steps with state, sources and sinks that are gone may be dropped.
        swap: Sources that were replaced and start from their own beginning.
    """

    new: bool = False
    dropped: bool = False
    swap: frozenset[str] = frozenset()


class Fate(Enum):
    """What a restore does with a step."""

    KEPT = "kept"
    """It resumes at its position."""
    MOVED = "moved"
    """It was part of other steps, and resumes from their snapshots."""
    NEW = "new"
    """It starts without a past."""
    MERGED = "merged"
    """It is gone; other steps do its work and resume from its position."""
    DROPPED = "dropped"
    """It is gone, and its past with it."""


@dataclass(frozen=True, slots=True)
class StepFate:
    """What a restore does with one step, with notes for the user."""

    step: StepId
    fate: Fate
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that prevents a restore: what, why, and what can be done."""

    subject: str
    reason: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.subject} {self.reason}. {self.next_step}."


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the offsets that a changed query starts with.

    Attributes:
        text: The offset of a source, or None if it starts from its beginning.
        channel: For a channel instead: the input, and the step's position on it.
        log: The number under which the source keeps files now, if it does.
        origin: The step of the cut that the offset comes from; None without one.
        origin_log: The number under which the source kept files there, if it did.
    """

    text: str | None = None
    channel: tuple[InputId, Place] | None = None
    log: int | None = None
    origin: StepId | None = None
    origin_log: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A cut as changed code sees it.

    Attributes:
        cut: The cut with a snapshot and an identity for exactly the current steps; an identity
            has the number of partitions of the state that is kept.
        queries: The steps whose query must be rebuilt, each with all lines of its offsets.
    """

    fates: tuple[StepFate, ...]
    refusals: tuple[Refusal, ...]
    cut: Cut
    queries: Mapping[StepId, tuple[Line, ...]] = field(default_factory=dict)

    @property
    def is_change(self) -> bool:
        return any(fate.fate is not Fate.KEPT or fate.notes for fate in self.fates)


def map_cut(cut: Cut, now: Mapping[StepId, StepIdentity], allowed: Allowances) -> Change:
    """Return what the current pipeline makes of a cut; `now` has each step after those it reads."""
    if set(cut.identities) != set(cut.snapshots):
        return _same_shape(cut, now, allowed)
    return _Mapper(cut, now, allowed).run()


@dataclass(slots=True)
class _Mapper:
    cut: Cut
    now: Mapping[StepId, StepIdentity]
    allowed: Allowances
    refusals: list[Refusal] = field(default_factory=list)
    outputs: dict[StepId, Place] = field(default_factory=dict)
    snapshots: dict[StepId, StepSnapshot] = field(default_factory=dict)
    queries: dict[StepId, tuple[Line, ...]] = field(default_factory=dict)
    fates: list[StepFate] = field(default_factory=list)

    def run(self) -> Change:
        self._check_names()
        for step, identity in self.now.items():
            self._map(step, identity)
        for step in sorted(self.old.keys() - self.now.keys()):
            self._map_gone(step, self.old[step])
        identities = {
            step: self._with_partitions(step, identity) for step, identity in self.now.items()
        }
        return Change(
            tuple(self.fates),
            tuple(self.refusals),
            replace(self.cut, snapshots=self.snapshots, identities=identities),
            self.queries,
        )

    @property
    def old(self) -> Mapping[StepId, StepIdentity]:
        return self.cut.identities

    def _refuse(self, subject: str, reason: str, next_step: str) -> None:
        self.refusals.append(Refusal(subject, reason, next_step))

    def _with_partitions(self, step: StepId, identity: StepIdentity) -> StepIdentity:
        if step not in self.old or identity.partitions is not None or self._never_ran(step):
            return identity
        return replace(identity, partitions=self.old[step].partitions)

    # -- sources and sinks, by name

    def _check_names(self) -> None:
        """Compare what is visible outside the pipeline: its sources and its sinks."""
        then, now = (
            set(self._owners),
            {source for step in self.now.values() for source in step.sources},
        )
        self._compare("source", then, now, "it would start from its beginning")
        for name in sorted(self.allowed.swap - now):
            self._refuse(f"source {name}", "cannot be swapped: there is none", "Name another one")
        sinks_then = {sink for step in self.old.values() for sink in step.sinks}
        sinks_now = {sink for step in self.now.values() for sink in step.sinks}
        begins = f"it would begin with what comes after checkpoint {self.cut.checkpoint_id}"
        self._compare("sink", sinks_then, sinks_now, begins)
        for sink in sorted(sink for sink, staged in self.cut.carried.items() if staged):
            if sink not in sinks_now:
                self._refuse(f"sink {sink}", "is gone, and rows wait for it", _SAVEPOINT)

    def _compare(self, kind: str, then: set[str], now: set[str], begins: str) -> None:
        if not self.allowed.new:
            for name in sorted(now - then):
                same = [gone for gone in sorted(then - now) if self._reads_the_same(name, gone)]
                hint = f"; if it was called {same[0]}, give it that name again" if same else ""
                self._refuse(f"{kind} {name}", f"is new: {begins}", f"{_ALLOW_NEW}{hint}")
        if not self.allowed.dropped:
            for name in sorted(then - now):
                self._refuse(f"{kind} {name}", "is gone", _ALLOW_DROPPED)

    def _reads_the_same(self, new: str, old: str) -> bool:
        """Return whether a current source reads what a removed source has read."""
        reading = [
            [stream.settings for step in steps.values() for _, stream in step.streams(name)]
            for steps, name in ((self.now, new), (self.old, old))
        ]
        return bool(reading[0]) and reading[0] == reading[1]

    @property
    def _owners(self) -> Mapping[str, StepId]:
        return {source: step for step, found in self.old.items() for source in found.sources}

    # -- one current step

    def _map(self, step: StepId, identity: StepIdentity) -> None:
        old = self.old.get(step)
        snapshot = self.cut.snapshots.get(step)
        if snapshot is None:
            snapshot = StepSnapshot(step, self.cut.checkpoint_id, self.cut.generation, NO_BATCH)
        notes: list[str] = []
        if old is None:
            fate = self._fate_of_new(step, identity)
        else:
            fate = Fate.KEPT
            notes += self._compared(step, old, identity)
        lines = tuple(self._lines(step, identity, notes))
        self._check_wiring(step, identity)
        snapshot = self._at_positions(snapshot, identity)
        changed = old is None or not old.has_lines_of(identity) or _is_swapped(old, lines, snapshot)
        if changed and any(line.text is not None for line in lines):
            snapshot = self._with_offsets(snapshot, identity, lines)
        elif changed and snapshot.batch == NO_BATCH:
            snapshot = replace(snapshot, state=(), offsets={})
        elif changed:
            snapshot = replace(snapshot, offsets=identity.unbegun)
        if not identity.is_query:
            snapshot = replace(snapshot, state=())
        elif changed and snapshot.batch != NO_BATCH:
            self.queries[step] = lines
        self.snapshots[step] = snapshot
        self.outputs[step] = snapshot.output
        self.fates.append(StepFate(step, fate, tuple(notes)))

    def _fate_of_new(self, step: StepId, identity: StepIdentity) -> Fate:
        if identity.operators and not self.allowed.new:
            reason = "is new and keeps state: it would start empty"
            same = [
                other
                for other, found in self.old.items()
                if other not in self.now and not state_differences(found, identity)
            ]
            hint = f"; if it was called {same[0]}, give it that name again" if same else ""
            self._refuse(f"step {step}", reason, f"{_ALLOW_NEW}{hint}")
        sinks_then = {sink for found in self.old.values() for sink in found.sinks}
        known = set(identity.sources) | set(identity.sinks)
        moved = known <= self._owners.keys() | sinks_then
        return Fate.MOVED if known and moved and not identity.operators else Fate.NEW

    def _compared(self, step: StepId, old: StepIdentity, identity: StepIdentity) -> list[str]:
        has_state = not self._never_ran(step)
        differences = state_differences(old, identity) if has_state else ()
        for reason in differences:
            self._refuse(f"step {step}", reason, KEEP_STATE)
        if has_state and runs_on_older_spark(old, identity):
            self._refuse(
                f"step {step}",
                f"runs on Spark {identity.spark}, which is older than the {old.spark} that wrote "
                "its state",
                f"Run it on Spark {old.spark} or newer, or rewind to a checkpoint that an older "
                "Spark wrote",
            )
        notes = []
        values = [operator.values for operator in identity.operators]
        if (
            has_state
            and not differences
            and values != [operator.values for operator in old.operators]
        ):
            notes.append("resumes with other expressions in its state")
        if old.columns != identity.columns:
            notes.append("outputs other columns")
        now, then = identity.wires, old.wires
        notes += [f"reads {wire} now" for wire in sorted((now - then).elements())]
        notes += [f"no longer reads {wire}" for wire in sorted((then - now).elements())]
        if now == then and not old.has_lines_of(identity):
            notes.append("reads its inputs in another order")
        return notes

    def _never_ran(self, step: StepId) -> bool:
        """Return whether a step of the cut has no state to compare, and lacks nothing."""
        snapshot = self.cut.snapshots[step]
        misses = any(place.position for place in snapshot.positions.values())
        return snapshot.batch == NO_BATCH and (bool(self.old[step].operators) or not misses)

    # -- where its sources resume

    def _lines(self, step: StepId, identity: StepIdentity, notes: list[str]) -> list[Line]:
        places = self._places(step, identity)
        seen: Counter[str] = Counter()
        found = []
        for step_input in identity.inputs:
            match step_input.kind:
                case InputKind.CHANNEL:
                    key = InputId(step_input.ordinal, ChannelId(step_input.name))
                    found.append(Line(channel=(key, places[key])))
                case InputKind.SOURCE:
                    found.append(self._source_line(step, step_input, seen[step_input.name], notes))
                    seen[step_input.name] += 1
                case _:
                    found.append(Line(self._pulse(step)))
        return found

    def _pulse(self, step: StepId) -> str | None:
        if step not in self.old:
            return None
        offsets = self.cut.snapshots[step].offsets
        return next((offsets[key] for key in offsets if key.endswith(":pulse")), None)

    def _source_line(self, step: StepId, now: InputIdentity, number: int, notes: list[str]) -> Line:
        """Find where a source resumes; notes and refusals are made at its first stream."""
        owner = self._owners.get(now.name)
        begins = Line(log=now.log)
        if owner is None:
            return begins
        then = self.old[owner].streams(now.name)
        streams = self.now[step].streams(now.name)
        swap = now.name in self.allowed.swap
        if swap and self._is_empty(step):
            return begins
        subject = f"source {now.name}"
        recreated = [
            topic
            for (_, before), (_, after) in zip(then, streams, strict=False)
            for topic in after.recreated_since(before)
        ]
        is_other = bool(recreated) or [stream.settings for _, stream in then] != [
            stream.settings for _, stream in streams
        ]
        if swap and is_other:
            if number == 0:
                notes.append(f"{subject} is swapped: it starts from its beginning ({now.place})")
            return begins
        if swap and number == 0:
            notes.append(f"{subject} is the same source as before: --swap changes nothing")
        if len(then) != len(streams):
            if number == 0:
                self._refuse(
                    subject,
                    f"reads {len(streams)} streams now, and read {len(then)}",
                    f"Change it back, or restart it with --swap {now.name}",
                )
            return begins
        at, before = then[number]
        if recreated and number == 0:
            self._refuse(
                subject,
                f"reads {', '.join(recreated)}, deleted and recreated since: the checkpoint's "
                "offsets are those of other records",
                f"Start it from its startingOffsets with --swap {now.name}, which keeps all state",
            )
        if before.format != now.format:
            self._refuse(
                subject,
                f"is read as {now.format} now, and was read as {before.format}, whose positions "
                "mean nothing to it",
                f"Change it back, or restart it with --swap {now.name}",
            )
        elif before.settings != now.settings:
            notes.append(
                f"{subject} reads {now.place} now, and read {before.place}: its position is kept"
            )
        text = self.cut.snapshots[owner].offsets.get(f"{at}:{now.name}")
        if text is None or text == NO_OFFSET:
            return begins
        if self._is_empty(step):
            self._refuse(
                f"step {step}",
                f"keeps state and has none in the checkpoint, but {subject} in it has a position",
                f"Declare {subject} with chain=False, so that it resumes outside the step, or "
                f"restart it with --swap {now.name}",
            )
        return Line(text, log=now.log, origin=owner, origin_log=before.log)

    def _is_empty(self, step: StepId) -> bool:
        """Return whether a step that keeps state has none yet."""
        snapshot = self.cut.snapshots.get(step)
        begun = snapshot is not None and snapshot.batch != NO_BATCH
        return bool(self.now[step].operators) and not begun

    def _with_offsets(
        self, snapshot: StepSnapshot, identity: StepIdentity, lines: tuple[Line, ...]
    ) -> StepSnapshot:
        offsets = {
            **identity.unbegun,
            **{
                f"{at}:{step_input.name}": line.text
                for at, (step_input, line) in enumerate(zip(identity.inputs, lines, strict=True))
                if line.text is not None
            },
        }
        # A query starts at an offset only after a batch that it has committed.
        batch = max(snapshot.batch, BatchId(0))
        # A step that never ran has no files to resume from.
        state = () if snapshot.batch == NO_BATCH else snapshot.state
        return replace(snapshot, batch=batch, offsets=offsets, state=state)

    # -- its positions on its channels

    def _places(self, step: StepId, identity: StepIdentity) -> Mapping[InputId, Place]:
        counterparts = self._counterparts(step, identity)
        then = self.cut.snapshots[step].positions if step in self.old else {}
        return {
            key: self.outputs.get(StepId(key.channel), START) if old is None else then[old]
            for key, old in counterparts.items()
        }

    def _counterparts(
        self, step: StepId, identity: StepIdentity
    ) -> Mapping[InputId, InputId | None]:
        """Find the input of the cut for each channel input: the same use of the channel."""
        old = self.old.get(step)
        seen: Counter[str] = Counter()
        found: dict[InputId, InputId | None] = {}
        for channel in identity.channels:
            uses = [] if old is None else [use for use in old.channels if use.name == channel.name]
            number = seen[channel.name]
            seen[channel.name] += 1
            key = InputId(channel.ordinal, ChannelId(channel.name))
            found[key] = None
            if number < len(uses):
                found[key] = InputId(uses[number].ordinal, ChannelId(channel.name))
        return found

    def _at_positions(self, snapshot: StepSnapshot, identity: StepIdentity) -> StepSnapshot:
        places = self._places(snapshot.step, identity)
        recorded = {part.input: part.events for part in snapshot.in_flight}
        in_flight = []
        barriers = dict(places)
        for key, old in self._counterparts(snapshot.step, identity).items():
            if old is None:
                continue
            barriers[key] = snapshot.barriers[old]
            events = recorded.get(old, ())
            if events:
                in_flight.append(InFlight(key, events))
                self._check_columns(snapshot.step, StepId(key.channel))
        return replace(snapshot, positions=places, barriers=barriers, in_flight=tuple(in_flight))

    # -- what is in flight

    @property
    def _is_aligned(self) -> bool:
        return not any(snapshot.has_events for snapshot in self.cut.snapshots.values())

    def _check_wiring(self, step: StepId, identity: StepIdentity) -> None:
        old = self.old.get(step)
        if old is None or self._is_aligned:
            return
        now, then = identity.wires, old.wires
        if now != then:
            self._refuse(
                f"step {step}",
                f"reads {_named(now)} now and read {_named(then)}, and checkpoint "
                f"{self.cut.checkpoint_id} has rows in flight",
                _SAVEPOINT,
            )

    def _check_columns(self, reader: StepId, producer: StepId) -> None:
        missing = columns_missing(self.old[producer], self.now[producer])
        if missing:
            self._refuse(
                f"step {producer}",
                f"outputs {', '.join(missing)} now, which its rows in flight to {reader} do not "
                "have",
                _SAVEPOINT,
            )

    # -- one removed step

    def _map_gone(self, step: StepId, old: StepIdentity) -> None:
        if old.operators and not self._never_ran(step) and not self.allowed.dropped:
            reason = "is gone, and its state would be forgotten"
            self._refuse(f"step {step}", reason, _ALLOW_DROPPED)
        left = {name for found in self.now.values() for name in (*found.sources, *found.sinks)}
        own = {*old.sources, *old.sinks}
        if own & left and self.cut.snapshots[step].has_events:
            self._refuse(
                f"step {step}",
                f"is part of another step now, and checkpoint {self.cut.checkpoint_id} has rows "
                "in flight to it",
                _SAVEPOINT,
            )
        dropped = old.operators or not own <= left
        self.fates.append(StepFate(step, Fate.DROPPED if dropped else Fate.MERGED))


def _named(wires: Counter[str]) -> str:
    return ", ".join(sorted(wires.elements()))


def _is_swapped(old: StepIdentity, lines: tuple[Line, ...], snapshot: StepSnapshot) -> bool:
    """Return whether a source that has a position in the cut has none now."""
    return any(
        snapshot.offsets.get(f"{at}:{step_input.name}", NO_OFFSET) != (line.text or NO_OFFSET)
        for at, (step_input, line) in enumerate(zip(old.inputs, lines, strict=True))
        if step_input.kind is InputKind.SOURCE
    )


def _same_shape(cut: Cut, now: Mapping[StepId, StepIdentity], allowed: Allowances) -> Change:
    """Check a cut without identities as far as its snapshots allow: nothing may differ."""
    refusals = []
    why = f"checkpoint {cut.checkpoint_id} does not hold enough to map it"
    ways = "Run the old code once more, so that it takes a checkpoint that describes its steps"
    for name in sorted(now.keys() | cut.snapshots.keys()):
        identity, snapshot = now.get(name), cut.snapshots.get(name)
        then_reads = "is not there" if snapshot is None else _reads_of(snapshot)
        now_reads = "is not there" if identity is None else _reads(identity)
        if then_reads != now_reads:
            reason = f"{then_reads} in checkpoint {cut.checkpoint_id} and {now_reads} now"
            refusals.append(Refusal(f"step {name}", f"{reason}; {why}", ways))
            continue
        assert snapshot is not None
        assert identity is not None
        keys = {f"{at}:{step_input.name}" for at, step_input in enumerate(identity.inputs)}
        if set(snapshot.offsets) - keys:
            reason = f"has other sources than checkpoint {cut.checkpoint_id}; {why}"
            refusals.append(Refusal(f"step {name}", reason, ways))
        if identity.is_query and snapshot.batch != NO_BATCH and not snapshot.state:
            reason = "keeps state now and kept none: it would start without its past"
            refusals.append(Refusal(f"step {name}", reason, ways))
    refusals += [
        Refusal(f"source {source}", f"cannot be swapped: {why}", ways)
        for source in sorted(allowed.swap)
    ]
    fates = tuple(StepFate(step, Fate.KEPT) for step in now)
    return Change(fates, tuple(refusals), replace(cut, identities=now))


def _reads(identity: StepIdentity) -> str:
    found = [f"{channel.ordinal}:{channel.name}" for channel in identity.channels]
    return f"reads {', '.join(found) or 'outside sources'}"


def _reads_of(snapshot: StepSnapshot) -> str:
    return f"reads {', '.join(map(str, sorted(snapshot.positions))) or 'outside sources'}"

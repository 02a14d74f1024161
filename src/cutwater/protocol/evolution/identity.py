"""What a step is, as a checkpoint stores it, so that changed code finds its state again.

The name of a step identifies its state. Everything else here says whether that state still means
the same: what the step reads and in which order, the columns of its rows, which operators keep
state, by which keys and in how many partitions. The analysis of a step fills the identity in; a
manifest holds it; `mapping` compares two of them (PROTOCOL.md section 15, rule F16). Values are
plain because they are stored field by field.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

NO_OFFSET: Final = "-"
"""The offset of an outside stream that has delivered nothing; Spark writes the same text."""


class InputKind(Enum):
    """What one line of a step's offsets refers to."""

    SOURCE = "source"
    """An outside stream, read inside the step."""
    CHANNEL = "channel"
    """The channel of another step."""
    PULSE = "pulse"
    """No data: an empty source that makes an owed batch run (rule F22)."""


@dataclass(frozen=True, slots=True)
class InputIdentity:
    """One input, in the order in which the step's offsets are written.

    Attributes:
        ordinal: For a channel: the number of the input in the step (rule F38).
        format: For a source: its format; offsets of one format mean nothing to another.
        place: For a source: where it reads, human-readable.
        settings: For a source: a hash of the place and of the options that say what is read.
        log: For a source of Spark: the number under which it keeps files next to its query;
            None if it keeps none.
        servers: For a source at a broker: where the broker is; holds no secret.
        topics: For such a source: each topic with the id that the broker gave it when it was
            created; empty if unknown. A topic recreated under its name has another id.
    """

    kind: InputKind
    name: str
    ordinal: int = 0
    format: str = ""
    place: str = ""
    settings: str = ""
    log: int | None = None
    servers: str = ""
    topics: tuple[tuple[str, str], ...] = ()

    def recreated_since(self, before: "InputIdentity") -> tuple[str, ...]:
        """Return the topics that were deleted and recreated since an earlier identity."""
        now = dict(self.topics)
        return tuple(
            topic for topic, topic_id in before.topics if now.get(topic, topic_id) != topic_id
        )


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """One operator that keeps state.

    Attributes:
        kind: Spark's name for it.
        keys: The keys of its state, each with its type, without expression ids.
        windows: For each key, its length if it is a time window; empty where unknown.
        layout: What is kept for a key: functions with the types of their results.
        values: The same in human-readable form.
        sides: For a join: the sources that each side comes from, through all channels.
    """

    kind: str
    keys: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    sides: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIdentity:
    """One step.

    Attributes:
        inputs: What it reads, in the order of its offsets.
        columns: Names and types of its output columns.
        operators: The operators that keep state, in plan order.
        partitions: Number of partitions of its state; None if it has no state, or if no number
            is requested.
        by_reference: Whether its channel names the files of its source instead of holding rows.
        plan_sha256: A hash of the whole plan. Equal hashes mean the same code; different hashes
            may still be the same code.
    """

    inputs: tuple[InputIdentity, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    operators: tuple[OperatorIdentity, ...] = ()
    partitions: int | None = None
    is_query: bool = True
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    spark: str = ""
    by_reference: bool = False
    plan_sha256: str = ""

    def streams(self, source: str) -> tuple[tuple[int, InputIdentity], ...]:
        """Return the lines of a source node, with their indexes in the offsets."""
        return tuple(
            (at, step_input)
            for at, step_input in enumerate(self.inputs)
            if step_input.kind is InputKind.SOURCE and step_input.name == source
        )

    @property
    def unbegun(self) -> dict[str, str]:
        """The offsets of its sources if all of them start from their beginning."""
        return {
            f"{at}:{step_input.name}": NO_OFFSET
            for at, step_input in enumerate(self.inputs)
            if step_input.kind is InputKind.SOURCE
        }

    @property
    def wires(self) -> Counter[str]:
        """What it reads, without the order."""
        return Counter(
            f"{step_input.kind.value} {step_input.name}"
            for step_input in self.inputs
            if step_input.kind is not InputKind.PULSE
        )

    def has_lines_of(self, other: "StepIdentity") -> bool:
        """Return whether the offsets of both mean the same, line by line."""
        mine, others = (
            [
                (step_input.kind, step_input.name, step_input.ordinal, step_input.log)
                for step_input in step.inputs
            ]
            for step in (self, other)
        )
        return self.is_query == other.is_query and mine == others

    @property
    def channels(self) -> tuple[InputIdentity, ...]:
        found = (step_input for step_input in self.inputs if step_input.kind is InputKind.CHANNEL)
        return tuple(sorted(found, key=lambda channel: channel.ordinal))


def state_differences(old: StepIdentity, new: StepIdentity) -> tuple[str, ...]:
    """Return why the current step cannot use the state of the old step; empty if it can.

    Each reason is a sentence without its subject, the step's name.
    """
    found = []
    then, now = old.operators, new.operators
    if [operator.kind for operator in then] != [operator.kind for operator in now]:
        return (f"keeps state in {_operators(now)} now, and kept it in {_operators(then)}",)
    for before, after in zip(then, now, strict=True):
        found += _operator_differences(before, after)
    if now and new.partitions is not None and new.partitions != old.partitions:
        found.append(f"requests {new.partitions} partitions, and its state has {old.partitions}")
    return tuple(found)


def runs_on_older_spark(old: StepIdentity, new: StepIdentity) -> bool:
    """Return whether the current step keeps state that a newer minor version of Spark wrote."""
    return bool(new.operators) and _version(new.spark) < _version(old.spark)


def _operator_differences(then: OperatorIdentity, now: OperatorIdentity) -> list[str]:
    found = []
    kind = now.kind
    if then.keys != now.keys:
        found.append(
            f"keys the state of its {kind} by {_listed(now.keys) or 'nothing'} now, and keyed it "
            f"by {_listed(then.keys) or 'nothing'}"
        )
    elif any(
        before and after and before != after
        for before, after in zip(then.windows, now.windows, strict=True)
    ):
        found.append(
            f"has {_listed(filter(None, now.windows))} in its {kind} now, and had "
            f"{_listed(filter(None, then.windows))}"
        )
    if then.layout != now.layout:
        found.append(
            f"keeps {_listed(now.values) or 'nothing'} in its {kind} now, and kept "
            f"{_listed(then.values) or 'nothing'}"
        )
    if then.sides != now.sides:
        found.append(
            f"joins {_sides(now)} now, and joined {_sides(then)}: the state of one side would "
            "be taken for that of the other"
        )
    return found


def columns_missing(old: StepIdentity, new: StepIdentity) -> tuple[str, ...]:
    """Return the columns, with their types, that rows of the old step do not have."""
    before = set(old.columns)
    return tuple(f"{name} {kind}" for name, kind in new.columns if (name, kind) not in before)


def _operators(operators: tuple[OperatorIdentity, ...]) -> str:
    named = (f"{operator.kind} by {_listed(operator.keys) or 'nothing'}" for operator in operators)
    return _listed(named) or "no operator"


def _sides(operator: OperatorIdentity) -> str:
    return " with ".join(_listed(side) or "nothing" for side in operator.sides)


def _listed(things: Iterable[str]) -> str:
    return ", ".join(things)


def _version(text: str) -> tuple[int, ...]:
    """Return major and minor; empty for an unknown version, which sorts before all others."""
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())

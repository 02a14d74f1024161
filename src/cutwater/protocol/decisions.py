"""The decision log as values: consecutive slots, claims and decisions (PROTOCOL.md section 9).

The log is the only truth. A process that decides must create exactly the slot after the last one
it has read; a claim takes the slot that a paused predecessor wanted, so the predecessor's create
fails (rule F5). Recovery, retention and listings follow the log, never the highest id.
Upholds I7 and I8.
"""

from dataclasses import dataclass
from enum import Enum, auto

from cutwater.ids import NO_CHECKPOINT, NO_SLOT, CheckpointId, Generation, Slot
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.transitions import invariant


class DecisionOutcome(Enum):
    WRITTEN = auto()
    """The slot holds this process's entry, also if a repeated create found it there."""
    TAKEN = auto()
    """The slot holds the entry of another process: this process is fenced out."""
    UNKNOWN = auto()
    """It is unknown; only a new process that reads the log may continue."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A new generation owns the pipeline from this slot on."""

    slot: Slot
    generation: Generation
    nonce: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A checkpoint or a rewind is decided.

    Attributes:
        slot: Its place in the log; together with the pipeline's uuid the sinks' idempotence key.
        nonce: Written by the creator of the entry, to recognise it after a lost answer (F15).
        origin: For a rewind, the slot of the cut it makes current again.
    """

    slot: Slot
    generation: Generation
    nonce: str
    kind: CheckpointKind
    checkpoint_id: CheckpointId
    manifest_sha256: str
    commit_point: bool
    origin: Slot | None = None


LogEntry = Claim | Decision


@dataclass(frozen=True, slots=True)
class LogView:
    """The log as it was read, from its first slot on."""

    entries: tuple[LogEntry, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a log with holes: it is damaged, and guessing would lose data."""
        for index, entry in enumerate(self.entries):
            invariant(entry.slot == index + 1, "I7", f"slot {index + 1} of the log is missing")

    @property
    def last_slot(self) -> Slot:
        """The last slot read; `NO_SLOT` for an empty log."""
        return Slot(len(self.entries)) if self.entries else NO_SLOT

    @property
    def generation(self) -> Generation:
        """The newest generation that claimed the pipeline; 0 before the first claim."""
        claims = [entry.generation for entry in self.entries if isinstance(entry, Claim)]
        return claims[-1] if claims else Generation(0)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions, oldest first."""
        return tuple(entry for entry in self.entries if isinstance(entry, Decision))

    @property
    def head(self) -> Decision | None:
        """The newest decision: the one the pipeline resumes from."""
        return self.decisions[-1] if self.decisions else None

    @property
    def highest_id(self) -> CheckpointId:
        """The highest decided checkpoint id; only for choosing a higher one."""
        return max((decision.checkpoint_id for decision in self.decisions), default=NO_CHECKPOINT)

    @property
    def deciding(self) -> frozenset[Generation]:
        """The generations that have decided something; no other generation has left a trace."""
        return frozenset(decision.generation for decision in self.decisions)

    @property
    def committing(self) -> frozenset[Generation]:
        """The generations that have decided something on which sinks act."""
        return frozenset(
            decision.generation for decision in self.decisions if decision.commit_point
        )

    def shown_at(self, decision: Decision) -> Generation:
        """Return the generation that made visible what the sinks show at a decision.

        At a recovery point nothing is committed: its sinks show what the previous commit point
        made visible, in the targets of that commit point's generation.
        """
        before = [
            earlier
            for earlier in self.decisions
            if earlier.commit_point and earlier.slot <= decision.slot
        ]
        return before[-1].generation if before else decision.generation

    def at(self, slot: Slot) -> LogEntry:
        return self.entries[slot - 1]


def repeated_checkpoint(
    log: LogView, checkpoint_id: CheckpointId, origin: Slot | None
) -> CheckpointId:
    """Return the checkpoint that a cut repeats, through all rewinds; its own if it is none."""
    decided = {decision.slot: decision for decision in log.decisions}
    found = checkpoint_id
    # A rewind goes back to an earlier slot, so this ends.
    while origin is not None and origin in decided:
        found, origin = decided[origin].checkpoint_id, decided[origin].origin
    return found


def uncommitted(log: LogView, committed_through: Slot) -> tuple[Decision, ...]:
    """Return the decisions whose sinks may not have acted, in the order to repeat them.

    A decision that a later rewind undoes is left out: the rewind restores its sinks to an older
    state anyway, and its staged rows may be exactly what is damaged.
    """
    rewinds = [decision for decision in log.decisions if decision.origin is not None]
    return tuple(
        decision
        for decision in log.decisions
        if decision.slot > committed_through
        and decision.commit_point
        and not any(
            later.slot > decision.slot and later.origin is not None and later.origin < decision.slot
            for later in rewinds
        )
    )

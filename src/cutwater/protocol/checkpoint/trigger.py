"""When an attempt may start: interval, pause, backoff, concurrency, requests (section 7).

A pure choice over facts. Requests of people do not wait for the interval, the pause or the
backoff; they wait for room like everything else. A failed attempt is repeated after the backoff,
not after a whole interval (rule F39).
"""

from dataclasses import dataclass
from enum import Enum, auto

from cutwater.protocol.options import CheckpointOptions


class Verdict(Enum):
    """Whether to start an attempt now, and if not, why not."""

    START = auto()
    NOT_DUE = auto()
    TOO_MANY_OPEN = auto()
    COLLECTING_GARBAGE = auto()
    ENDING = auto()


class RequestResult(Enum):
    """What became of a request."""

    QUEUED = auto()
    QUEUE_FULL = auto()
    NOT_RUNNING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerFacts:
    """All that the choice depends on.

    Attributes:
        now_ms: The time.
        open_attempts: How many attempts have not ended.
        started_at_ms: When the last attempt started; None before the first.
        ended_at_ms: When the last attempt ended; None before the first end.
        failure_pause_ms: How long to pause after the failures so far.
        requested: Whether a request waits.
        drained: Whether everything is drained and sinks wait for a commit.
        garbage: Whether garbage is being or must be collected first.
        ending: Whether the pipeline is ending.
    """

    now_ms: int
    open_attempts: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    failure_pause_ms: int = 0
    requested: bool = False
    drained: bool = False
    garbage: bool = False
    ending: bool = False


def decide(facts: TriggerFacts, options: CheckpointOptions) -> Verdict:
    """Say whether an attempt starts now."""
    if facts.ending:
        return Verdict.ENDING
    if facts.garbage:
        return Verdict.COLLECTING_GARBAGE
    if facts.open_attempts >= options.max_concurrent:
        return Verdict.TOO_MANY_OPEN
    if facts.requested or facts.now_ms >= due_ms(facts, options):
        return Verdict.START
    return Verdict.NOT_DUE


def due_ms(facts: TriggerFacts, options: CheckpointOptions) -> int:
    """Return when the next automatic attempt is due; the first one is due at once."""
    if facts.started_at_ms is None:
        return facts.now_ms
    due = facts.started_at_ms + options.interval_ms
    if facts.drained and options.flush_when_drained:
        due = facts.now_ms
    if facts.ended_at_ms is None:
        return due
    if facts.failure_pause_ms and facts.started_at_ms <= facts.ended_at_ms:
        due = facts.ended_at_ms + facts.failure_pause_ms
    return max(due, facts.ended_at_ms + options.min_pause_ms)

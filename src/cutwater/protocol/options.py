"""The options of the protocol, as plain numbers, validated on construction.

The defaults are defined here and nowhere else: `cutwater.config.options` writes them as text.

Times are milliseconds, sizes are bytes. Names are Flink's where Flink has the option. Each option
is read by exactly the module its docstring names. Text forms such as "5s" and the order of
configuration sources belong to `cutwater.config`.
"""

from dataclasses import dataclass, field
from typing import Final

from cutwater.errors import ConfigError

MIB: Final = 1024 * 1024


def _at_least(option: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise ConfigError(option, f"{value} is below {lowest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedOptions:
    """When a step may let a barrier overtake data (read by `aligner`).

    Attributes:
        enabled: Whether a step may overtake at all.
        forced: Overtake as soon as a barrier is seen, without waiting for alignment.
        alignment_timeout_ms: How long after the start of the attempt a step still waits.
        max_inflight_bytes: How much in-flight data one step may record for one attempt.
    """

    enabled: bool = True
    forced: bool = False
    alignment_timeout_ms: int = 10_000
    max_inflight_bytes: int = 256 * MIB

    def __post_init__(self) -> None:
        _at_least("unaligned.alignment_timeout", self.alignment_timeout_ms, 0)
        _at_least("unaligned.max_inflight_bytes", self.max_inflight_bytes, 1)
        if self.forced and not self.enabled:
            raise ConfigError("unaligned.forced", "needs unaligned.enabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """How sinks are committed after a decision (read by `commit`).

    Attributes:
        commit_unaligned: With two or more sinks, commit also at cuts with data in flight. The
            tables may then disagree (rule F3); without it such a cut is a recovery point only.
        every_ms: Minimum time from the start of one commit with rows to the next; cuts between
            are recovery points. 0 means that sinks commit at every cut (read by `ledger`).
        recovery_points_max: How many cuts in a row may carry their output because of data in
            flight. The next attempt is self-contained, so that no step overtakes and its cut is
            a commit point (read by `coordinator`).
        retry_ms: The pause before the first retry of a failed commit; doubled each time.
        retry_max_ms: The longest such pause.
        budget_ms: How long a commit may fail before the pipeline is reported COMMIT_BLOCKED.
    """

    commit_unaligned: bool = False
    every_ms: int = 0
    recovery_points_max: int = 10
    retry_ms: int = 200
    retry_max_ms: int = 30_000
    budget_ms: int = 60_000

    def __post_init__(self) -> None:
        _at_least("commit_every", self.every_ms, 0)
        _at_least("commit.recovery_points_max", self.recovery_points_max, 1)
        _at_least("commit.retry", self.retry_ms, 1)
        _at_least("commit.retry_max", self.retry_max_ms, self.retry_ms)
        _at_least("commit.budget", self.budget_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """When attempts start and end, and what is kept.

    Attributes:
        interval_ms: Time from the start of one automatic attempt to the next (`schedule`).
        timeout_ms: How long an attempt may take until its decision is issued (`attempt`).
        savepoint_timeout_ms: The same for savepoints, full checkpoints and drains, which never
            overtake (`attempt`).
        min_pause_ms: Time from the end of one attempt to the start of the next automatic one; at
            least 1 so that failing attempts cannot hold the pipeline forever (`schedule`).
        max_concurrent: How many attempts may be open; 1 unless unaligned is off (F28).
        tolerable_failed: How many attempts in a row may fail before the pipeline restarts;
            None means any number: a failed attempt is an alarm, not a restart (`failure`).
        retry_ms: The pause after a failed attempt; doubled with every failure in a row.
        retry_max_ms: The longest such pause.
        queue_limit: How many requests may wait for their turn (`schedule`).
        retained: How many checkpoints are kept in addition to savepoints (`retention`).
        incremental: Reuse objects that retained checkpoints already name (`retention`).
        flush_when_drained: Start before the interval is over when everything is drained and
            sinks are waiting (`schedule`).
        unaligned: When steps may overtake.
        commit: How sinks are committed.
    """

    interval_ms: int = 10_000
    timeout_ms: int = 600_000
    savepoint_timeout_ms: int = 3_600_000
    min_pause_ms: int = 500
    max_concurrent: int = 1
    tolerable_failed: int | None = None
    retry_ms: int = 1_000
    retry_max_ms: int = 60_000
    queue_limit: int = 16
    retained: int = 10
    incremental: bool = True
    flush_when_drained: bool = True
    unaligned: UnalignedOptions = field(default_factory=UnalignedOptions)
    commit: CommitOptions = field(default_factory=CommitOptions)

    def __post_init__(self) -> None:
        _at_least("interval", self.interval_ms, 1)
        _at_least("timeout", self.timeout_ms, 1)
        _at_least("savepoint_timeout", self.savepoint_timeout_ms, 1)
        _at_least("min_pause", self.min_pause_ms, 1)
        _at_least("max_concurrent", self.max_concurrent, 1)
        _at_least("retry", self.retry_ms, 1)
        _at_least("retry_max", self.retry_max_ms, self.retry_ms)
        _at_least("queue_limit", self.queue_limit, 1)
        _at_least("retained", self.retained, 1)
        if self.tolerable_failed is not None:
            _at_least("tolerable_failed", self.tolerable_failed, 0)
        if self.max_concurrent > 1 and self.unaligned.enabled:
            raise ConfigError(
                "max_concurrent",
                "must be 1 while unaligned.enabled is on (an overtaken attempt "
                "would leave a step after a later one)",
            )

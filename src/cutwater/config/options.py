"""What a user decides about a run: when checkpoints are taken, and what follows a failure.

Durations and sizes are text ("5s", "64MB"), checked when a config is made, so that a wrong one is
found before anything starts and is named as it was written. Words are Flink's where Flink has the
option. The protocol takes the same things as plain numbers: `CheckpointConfig.options`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from cutwater.errors import ConfigError
from cutwater.protocol.channel_log import Bound
from cutwater.protocol.options import CheckpointOptions, CommitOptions, UnalignedOptions
from cutwater.units import as_duration, as_size, milliseconds, size_bytes

Unaligned = Literal[True, False, "forced"]
"""Whether a step may let a barrier overtake data: when it must, never, or always."""

Strategy = Literal["fixed", "exponential", "none"]
"""How long a failed pipeline pauses before it restarts: as long every time, twice as long, or no
restart at all."""

STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)

_PROTOCOL: Final = CheckpointOptions()
"""The defaults of every option that the protocol has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are taken, what they may cost, and how many are kept.

    Attributes:
        interval: From the start of one checkpoint to the next. Ten seconds: sinks become visible
            at checkpoints, and each costs a version of every table.
        timeout: How long one may take. Ten minutes, as in Flink: batches of many seconds in a
            deep pipeline are slow, not broken.
        savepoint_timeout: The same for savepoints, full checkpoints and drains. One hour: their
            barriers never overtake, and they upload everything. Independent of `timeout`.
        min_pause: From the end of one to the start of the next, so that slow checkpoints leave
            the pipeline time to work. Half a second, about one batch.
        max_concurrent: How many may be under way; must be 1 unless `unaligned=False`.
        tolerable_failed: How many in a row may fail before the pipeline restarts. None, for any
            number: a failed checkpoint is an alarm, and a restart would not make the next faster.
        retained: How many are kept beside savepoints. Ten, to have somewhere to rewind to.
        incremental: Upload only what no kept checkpoint has. True: it costs nothing.
        alignment_timeout: How long after a checkpoint's start a step still waits for the barriers
            of its other inputs before it lets one overtake. Ten seconds: most pipelines align
            within that, and an aligned checkpoint is smaller and commits every sink. Refused
            together with `unaligned=False` or `"forced"`, where it has no effect.
        unaligned: Whether barriers may overtake at all; `"forced"` for at once, without waiting.
        max_inflight_bytes: What one step may record of the data that was overtaken. A checkpoint
            that would need more fails; nothing is dropped.
        commit_unaligned: Let sinks commit although data is in flight. False: with two or more
            sinks the tables could disagree, so they wait for the next aligned checkpoint.
        channel_bytes: How much a channel holds for its slowest reader before its writer waits.
        channel_messages: The same, counted in batches.
        target_batch: How long a batch of a step that lags may take: up to that time such a step
            reads more in one batch than its sources' limits say (`maxFilesPerTrigger`,
            `maxOffsetsPerTrigger`), since each batch has a fixed cost. Barriers pass between
            batches. Two seconds; `0s` for never more than the limits.
    """

    interval: str = as_duration(_PROTOCOL.interval_ms)
    timeout: str = as_duration(_PROTOCOL.timeout_ms)
    savepoint_timeout: str = as_duration(_PROTOCOL.savepoint_timeout_ms)
    min_pause: str = as_duration(_PROTOCOL.min_pause_ms)
    max_concurrent: int = _PROTOCOL.max_concurrent
    tolerable_failed: int | None = _PROTOCOL.tolerable_failed
    retained: int = _PROTOCOL.retained
    incremental: bool = _PROTOCOL.incremental
    alignment_timeout: str = as_duration(_PROTOCOL.unaligned.alignment_timeout_ms)
    unaligned: Unaligned = _PROTOCOL.unaligned.enabled
    max_inflight_bytes: str = as_size(_PROTOCOL.unaligned.max_inflight_bytes)
    commit_unaligned: bool = _PROTOCOL.commit.commit_unaligned
    channel_bytes: str = "256MB"
    channel_messages: int = 1000
    target_batch: str = "2s"

    def __post_init__(self) -> None:
        if type(self.unaligned) is not bool and self.unaligned != "forced":
            raise ConfigError("unaligned", f"{self.unaligned!r} is none of True, False, 'forced'")
        for option in ("incremental", "commit_unaligned"):
            _check_flag(option, getattr(self, option))
        for option in ("max_concurrent", "retained", "channel_messages"):
            _check_count(option, getattr(self, option), 1)
        if self.tolerable_failed is not None:
            _check_count("tolerable_failed", self.tolerable_failed, 0)
        if self.max_concurrent > 1 and self.unaligned:
            reason = f"{self.max_concurrent} at a time need unaligned=False"
            raise ConfigError("max_concurrent", reason)
        for option in ("interval", "timeout", "savepoint_timeout", "min_pause"):
            _check_above_zero(option, getattr(self, option), milliseconds)
        for option in ("max_inflight_bytes", "channel_bytes"):
            _check_above_zero(option, getattr(self, option), size_bytes)
        milliseconds(self.alignment_timeout, "alignment_timeout")
        milliseconds(self.target_batch, "target_batch")
        self._check_overtaking()

    def _check_overtaking(self) -> None:
        """Refuse options that `unaligned` leaves without any effect."""
        without: tuple[str, ...]
        match self.unaligned:
            case False:
                without = ("alignment_timeout", "max_inflight_bytes", "commit_unaligned")
                why = "no barrier overtakes"
            case "forced":
                without = ("alignment_timeout",)
                why = "barriers overtake at once"
            case _:
                return
        for option in without:
            value = getattr(self, option)
            if value != type(self).__dataclass_fields__[option].default:
                reason = f"{value!r} has no effect with unaligned={self.unaligned!r}, since {why}"
                raise ConfigError(option, f"{reason}; leave one of the two out")

    def options(self) -> CheckpointOptions:
        """Return the same as the protocol's numbers."""
        return CheckpointOptions(
            interval_ms=milliseconds(self.interval, "interval"),
            timeout_ms=milliseconds(self.timeout, "timeout"),
            savepoint_timeout_ms=milliseconds(self.savepoint_timeout, "savepoint_timeout"),
            min_pause_ms=milliseconds(self.min_pause, "min_pause"),
            max_concurrent=self.max_concurrent,
            tolerable_failed=self.tolerable_failed,
            retained=self.retained,
            incremental=self.incremental,
            unaligned=UnalignedOptions(
                enabled=self.unaligned is not False,
                forced=self.unaligned == "forced",
                alignment_timeout_ms=milliseconds(self.alignment_timeout, "alignment_timeout"),
                max_inflight_bytes=size_bytes(self.max_inflight_bytes, "max_inflight_bytes"),
            ),
            commit=CommitOptions(commit_unaligned=self.commit_unaligned),
        )

    @property
    def target_batch_ms(self) -> int:
        """How long a batch of a step that lags may take; 0 for no larger batches."""
        return milliseconds(self.target_batch, "target_batch")

    def channel_bound(self) -> Bound:
        """Return how full a channel may be before its writer waits."""
        return Bound(
            messages=self.channel_messages,
            size_bytes=size_bytes(self.channel_bytes, "channel_bytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """What follows a failure: all steps restart together, from the last checkpoint.

    Attributes:
        strategy: `fixed` pauses as long every time, `exponential` twice as long each time, `none`
            ends the pipeline at its first failure. Fixed: most failures pass, or do not.
        attempts: How many restarts within `window`; the next failure ends the pipeline. Three: an
            error in the user's code should be seen within a minute. None for any number. A lack of
            file descriptors or memory while the driver restarts is not counted, and waited out.
        delay: The pause before a restart; with `exponential`, before the first.
        max_delay: The longest pause of `exponential`.
        window: Failures longer ago than this are forgotten. Ten minutes: a pipeline that ran
            well for so long has a new problem, not the old one.
    """

    strategy: Strategy = "fixed"
    attempts: int | None = 3
    delay: str = "1s"
    max_delay: str = "1m"
    window: str = "10m"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise ConfigError("strategy", f"{self.strategy!r} is none of {known}")
        if self.attempts is not None:
            _check_count("attempts", self.attempts, 0)
        delay_ms = milliseconds(self.delay, "delay")
        if milliseconds(self.max_delay, "max_delay") < delay_ms:
            raise ConfigError("max_delay", f"{self.max_delay} is below delay, {self.delay}")
        _check_above_zero("window", self.window, milliseconds)

    @property
    def restarts(self) -> bool:
        """Whether there is any restart at all."""
        return self.strategy != "none" and self.attempts != 0

    @property
    def delay_ms(self) -> int:
        """The pause before a restart; with `exponential`, before the first."""
        return milliseconds(self.delay, "delay")

    def pause_ms(self, failures_ms: Sequence[int]) -> int | None:
        """Return how long to pause before the next restart; None to end the pipeline instead.

        The failures so far are in one clock's time, oldest first, at least one.
        """
        since = failures_ms[-1] - milliseconds(self.window, "window")
        recent = sum(failed_ms >= since for failed_ms in failures_ms)
        if self.strategy == "none" or (self.attempts is not None and recent > self.attempts):
            return None
        if self.strategy == "fixed":
            return self.delay_ms
        # Bounded before it is raised to a power: after a thousand failures as after twenty.
        doubled_ms = self.delay_ms << min(recent - 1, 32)
        return min(doubled_ms, milliseconds(self.max_delay, "max_delay"))


def _check_count(option: str, value: object, lowest: int) -> None:
    # In Python a bool is an int, but the user who wrote one did not mean a number.
    if type(value) is not int or value < lowest:
        raise ConfigError(option, f"{value!r} is not a whole number of at least {lowest}")


def _check_flag(option: str, value: object) -> None:
    if type(value) is not bool:
        raise ConfigError(option, f"{value!r} is neither True nor False")


def _check_above_zero(option: str, text: str, number: Callable[[str, str], int]) -> None:
    if number(text, option) == 0:
        raise ConfigError(option, f"{text!r} must be above zero")

"""What users write about checkpoints and restarts, and what the protocol gets of it."""

from collections.abc import Mapping
from typing import Any

import pytest

from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.errors import ConfigError
from cutwater.protocol.channel_log import Bound
from cutwater.protocol.options import MIB, CheckpointOptions, CommitOptions, UnalignedOptions


def test_the_defaults_are_the_protocols() -> None:
    assert CheckpointConfig().options() == CheckpointOptions()
    assert CheckpointConfig().channel_bound() == Bound(messages=1000, size_bytes=256 * MIB)


def test_every_option_reaches_the_protocol() -> None:
    config = CheckpointConfig(
        interval="5s",
        timeout="2h",
        savepoint_timeout="90m",
        min_pause="1s",
        max_concurrent=2,
        tolerable_failed=0,
        retained=3,
        incremental=False,
        unaligned=False,
        channel_bytes="2MB",
        channel_messages=7,
    )

    assert config.channel_bound() == Bound(messages=7, size_bytes=2 * MIB)
    assert config.options() == CheckpointOptions(
        interval_ms=5_000,
        timeout_ms=7_200_000,
        savepoint_timeout_ms=5_400_000,
        min_pause_ms=1_000,
        max_concurrent=2,
        tolerable_failed=0,
        retained=3,
        incremental=False,
        unaligned=UnalignedOptions(enabled=False),
    )


def test_every_option_about_overtaking_reaches_the_protocol() -> None:
    config = CheckpointConfig(
        alignment_timeout="0s", max_inflight_bytes="1MB", commit_unaligned=True
    )

    assert config.options().unaligned == UnalignedOptions(
        alignment_timeout_ms=0, max_inflight_bytes=MIB
    )
    assert config.options().commit == CommitOptions(commit_unaligned=True)


def test_forced_barriers_overtake_at_once() -> None:
    unaligned = CheckpointConfig(unaligned="forced").options().unaligned

    assert (unaligned.enabled, unaligned.forced) == (True, True)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"interval": "5"}, "interval: '5' is not a duration"),
        ({"interval": 5}, "interval: 5 has no unit"),
        ({"interval": "0s"}, "interval: '0s' must be above zero"),
        ({"timeout": "0m"}, "timeout: '0m' must be above zero"),
        ({"savepoint_timeout": "0s"}, "savepoint_timeout: '0s' must be above zero"),
        ({"min_pause": "0ms"}, "min_pause: '0ms' must be above zero"),
        ({"alignment_timeout": "long"}, "alignment_timeout: 'long' is not a duration"),
        ({"max_inflight_bytes": "0MB"}, "max_inflight_bytes: '0MB' must be above zero"),
        ({"channel_bytes": "5s"}, "channel_bytes: '5s' has no unit that is known here"),
        ({"channel_messages": 0}, "channel_messages: 0 is not a whole number of at least 1"),
        ({"max_concurrent": 2}, "max_concurrent: 2 at a time need unaligned=False"),
        ({"max_concurrent": True}, "max_concurrent: True is not a whole number of at least 1"),
        ({"tolerable_failed": -1}, "tolerable_failed: -1 is not a whole number of at least 0"),
        ({"retained": "10"}, "retained: '10' is not a whole number of at least 1"),
        ({"incremental": "no"}, "incremental: 'no' is neither True nor False"),
        ({"commit_unaligned": 1}, "commit_unaligned: 1 is neither True nor False"),
        (
            {"unaligned": False, "alignment_timeout": "1s"},
            "alignment_timeout: '1s' has no effect with unaligned=False",
        ),
        (
            {"unaligned": "forced", "alignment_timeout": "1s"},
            "alignment_timeout: '1s' has no effect with unaligned='forced'",
        ),
        (
            {"unaligned": False, "max_inflight_bytes": "1GB"},
            "max_inflight_bytes: '1GB' has no effect with unaligned=False",
        ),
        (
            {"unaligned": False, "commit_unaligned": True},
            "commit_unaligned: True has no effect with unaligned=False",
        ),
        ({"unaligned": "yes"}, "unaligned: 'yes' is none of True, False, 'forced'"),
        ({"unaligned": 0}, "unaligned: 0 is none of True, False, 'forced'"),
    ],
)
def test_a_wrong_option_is_refused_by_the_name_it_was_written_with(
    given: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        CheckpointConfig(**given)

    assert refused.value.message.startswith(sentence)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"strategy": "never"}, "strategy: 'never' is none of fixed, exponential, none"),
        ({"attempts": -1}, "attempts: -1 is not a whole number of at least 0"),
        ({"delay": "2m"}, "max_delay: 1m is below delay, 2m"),
        ({"window": "0s"}, "window: '0s' must be above zero"),
    ],
)
def test_a_restart_that_cannot_work_is_refused(given: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RestartConfig(**given)

    assert refused.value.message.startswith(sentence)


def pauses(config: RestartConfig, *failures_ms: int) -> list[int | None]:
    """The pause after each failure."""
    counts = range(1, len(failures_ms) + 1)
    return [config.pause_ms(failures_ms[:count]) for count in counts]


def test_a_fixed_restart_pauses_as_long_every_time_and_then_gives_up() -> None:
    assert pauses(RestartConfig(), 0, 1, 2, 3) == [1_000, 1_000, 1_000, None]


def test_failures_before_the_window_are_forgotten() -> None:
    config = RestartConfig(attempts=1, window="10s")

    assert pauses(config, 0, 10_001, 20_001) == [1_000, 1_000, None]


def test_an_exponential_restart_pauses_twice_as_long_each_time_up_to_a_limit() -> None:
    config = RestartConfig(strategy="exponential", attempts=None, max_delay="5s")

    assert pauses(config, 0, 1, 2, 3, 4) == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert config.pause_ms(range(10_000)) == 5_000


def test_a_pipeline_without_restarts_ends_at_its_first_failure() -> None:
    assert pauses(RestartConfig(strategy="none"), 0) == [None]
    assert pauses(RestartConfig(attempts=0), 0) == [None]

"""How far a batch may go: the arithmetic, with the time given."""

from typing import Any, cast

import pytest

from cutwater.errors import ConfigError
from cutwater.sources.numbered import BATCH_MAX, NUMBERS_MAX, START_TIME, Pace, event_micros


@pytest.mark.parametrize(
    ("pace", "at", "elapsed_s", "expected"),
    [
        (Pace(), 0, 0.0, BATCH_MAX),
        (Pace(), 70, 5.0, 70 + BATCH_MAX),
        (Pace(batch_max=10), 70, 5.0, 80),
        (Pace(total=75), 70, 5.0, 75),
        (Pace(total=75, batch_max=3), 70, 5.0, 73),
        (Pace(total=75), 75, 5.0, 75),
        (Pace(total=0), 0, 5.0, 0),
        (Pace(rate=100), 0, 0.0, 0),
        (Pace(rate=100), 0, 0.019, 1),
        (Pace(rate=100), 0, 2.5, 250),
        (Pace(rate=0.5), 0, 3.9, 1),
        (Pace(rate=100, total=200), 0, 2.5, 200),
        (Pace(rate=100, batch_max=40), 0, 2.5, 40),
        (Pace(rate=100), 250, 2.5, 250),
        (Pace(rate=1e300), 0, 1.0, BATCH_MAX),
        (Pace(batch_max=2 * BATCH_MAX), 0, 0.0, 2 * BATCH_MAX),
        (Pace(), NUMBERS_MAX, 0.0, NUMBERS_MAX),
    ],
)
def test_a_batch_ends_at_the_least_of_its_bounds(
    pace: Pace, at: int, elapsed_s: float, expected: int
) -> None:
    assert pace.end(at, elapsed_s, began_at=0, all_now=False) == expected


def test_after_a_restore_the_rate_counts_from_the_restored_number() -> None:
    pace = Pace(rate=100)
    assert pace.end(5_000, 0.0, began_at=5_000, all_now=False) == 5_000
    assert pace.end(5_000, 2.0, began_at=5_000, all_now=False) == 5_200
    assert pace.end(5_150, 2.0, began_at=5_000, all_now=False) == 5_200


def test_what_was_lowered_below_the_offset_never_takes_an_offset_back() -> None:
    assert Pace(total=10).end(50, 1.0, began_at=50, all_now=False) == 50
    assert Pace(total=10).end(50, 1.0, began_at=50, all_now=True) == 50


def test_all_now_reads_to_the_end_in_batches_whatever_the_rate() -> None:
    pace = Pace(rate=0.001, total=25, batch_max=10)
    ends = [0]
    while not pace.exhausted(ends[-1]):
        ends.append(pace.end(ends[-1], 0.0, began_at=0, all_now=True))
    assert ends == [0, 10, 20, 25]


def test_all_now_of_a_source_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="without an end") as caught:
        Pace(rate=10.0).end(0, 1.0, began_at=0, all_now=True)
    assert caught.value.option == "total"


def test_only_a_source_with_a_total_is_ever_exhausted() -> None:
    assert not Pace().exhausted(NUMBERS_MAX)
    assert not Pace(total=10).exhausted(9)
    assert Pace(total=10).exhausted(10)
    assert Pace(total=10).exhausted(11)
    assert Pace(total=0).exhausted(0)


@pytest.mark.parametrize("option", ["total", "partitions", "batch_max"])
@pytest.mark.parametrize("value", [-1, 1.5, "7", True, NUMBERS_MAX + 1])
def test_a_count_that_is_none_is_refused_by_name(option: str, value: object) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError) as caught:
        Pace(**given)
    assert caught.value.option == option


@pytest.mark.parametrize("option", ["partitions", "batch_max"])
def test_a_count_that_would_never_give_a_row_is_refused(option: str) -> None:
    given: dict[str, Any] = {option: 0}
    with pytest.raises(ConfigError) as caught:
        Pace(**given)
    assert caught.value.option == option


@pytest.mark.parametrize("rate", [0, 0.0, -1.0, float("nan"), float("inf"), True, "fast"])
def test_a_rate_that_is_no_speed_is_refused_by_name(rate: object) -> None:
    given = cast("float", rate)
    for make in (lambda: Pace(rate=given), lambda: event_micros("id", given, START_TIME)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.option == "rate"


@pytest.mark.parametrize("start_time", ["soon", "", None, "2026-13-01T00:00:00Z", "2026-01-01"])
def test_a_start_time_that_is_no_moment_is_refused_by_name(start_time: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        event_micros("id", None, cast("str", start_time))
    assert caught.value.option == "start_time"


def test_a_start_time_may_be_given_in_any_zone() -> None:
    same = {
        event_micros("id", 10.0, text)
        for text in ("2026-01-01T00:00:00Z", "2026-01-01T02:30:00+02:30", "2025-12-31T23:00-01:00")
    }
    assert same == {"1767225600000000L + CAST(floor(id * 1000000.0D / 10.0D) AS BIGINT)"}

"""How much the next batch reads: more while there is a backlog, within a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.runtime.batch_size import MULTIPLE_MAX, BatchBudget, grow

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("multiple", "took_ms", "grown"),
    [(1, 100, 2), (2, 100, 4), (4, 1500, 5), (4, 2000, 4), (4, 8000, 1), (64, 10, MULTIPLE_MAX)],
)
def test_a_step_that_lags_reads_more_until_a_batch_takes_the_target(
    multiple: int, took_ms: int, grown: int
) -> None:
    assert grow(multiple, took_ms=took_ms, is_full=True, target_ms=2000) == grown


def test_a_step_that_has_caught_up_reads_what_its_sources_limits_say() -> None:
    assert grow(16, took_ms=10, is_full=False, target_ms=2000) == 1


def test_without_a_target_the_limits_hold() -> None:
    assert grow(1, took_ms=10, is_full=True, target_ms=0) == 1
    budget = BatchBudget()
    budget.note(MB, 10)
    assert budget.size_bytes is None
    assert budget.within(None) is None
    assert budget.within(7) == 7


@given(st.integers(1, MULTIPLE_MAX), st.integers(0, 10**6), st.integers(1, 10**5))
def test_a_multiple_at_most_doubles_and_never_ends_reading(
    multiple: int, took_ms: int, target_ms: int
) -> None:
    grown = grow(multiple, took_ms=took_ms, is_full=True, target_ms=target_ms)
    assert 1 <= grown <= min(2 * multiple, MULTIPLE_MAX)


def test_a_budget_grows_with_quick_batches_and_shrinks_after_a_slow_one() -> None:
    budget = BatchBudget(target_ms=2000)
    first = budget.size_bytes
    assert first is not None
    budget.note(1000, 1900)
    assert budget.size_bytes == first, "a small batch says nothing about a large one"
    budget.note(first, 500)
    assert budget.size_bytes == 2 * first
    budget.note(2 * first, 8000)
    assert budget.size_bytes == first // 2
    budget.note(0, 8000)
    assert budget.size_bytes == first // 2, "a batch without rows says nothing"


def test_a_budget_stays_within_the_steps_own_limit() -> None:
    budget = BatchBudget(target_ms=2000)
    assert budget.within(1) == 1
    assert budget.within(2**40) == budget.size_bytes

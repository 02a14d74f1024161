"""The limit of open files: raised as far as is useful, never lowered."""

import resource

import pytest

from cutwater.cli.process import best_soft_limit

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1_048_576, 65_536),
        (1_024, UNLIMITED, 65_536),
        (100_000, 1_048_576, 100_000),
        (UNLIMITED, UNLIMITED, UNLIMITED),
        (512, 512, 512),
    ],
)
def test_the_soft_limit_is_raised_within_the_hard_one(soft: int, hard: int, expected: int) -> None:
    assert best_soft_limit(soft, hard) == expected

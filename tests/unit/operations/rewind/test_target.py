"""Choosing a checkpoint: by number, by name, by time; and what is said when there is none."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.unit.protocol.builders import cut, decision

from cutwater.errors import ConfigError
from cutwater.operations.rewind.target import Candidate, choose, milliseconds_of, offer, time_text
from cutwater.protocol.cut import CheckpointKind

BASE_MS = 1_790_000_000_000


def candidate(number: int, *, at_s: int, name: str | None = None) -> Candidate:
    kind = CheckpointKind.SAVEPOINT if name else CheckpointKind.CHECKPOINT
    made = replace(cut(number), started_at_ms=BASE_MS + at_s * 1000, kind=kind, name=name)
    return Candidate(replace(decision(number + 1, number), kind=kind), made)


DAMAGED = Candidate(decision(9, 8), None)
PAST = (
    candidate(3, at_s=0),
    candidate(4, at_s=60, name="before"),
    candidate(6, at_s=120),
    DAMAGED,
)


def at(seconds: float, zone: timezone = UTC) -> str:
    moment = datetime.fromtimestamp(BASE_MS / 1000 + seconds, tz=zone)
    return moment.isoformat(sep=" ")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3),
        (" 6 ", 6),
        ("8", 8),
        ("before", 4),
        ("4", 4),
        (at(0), 3),
        (at(59.999), 3),
        (at(60), 4),
        (at(119), 4),
        (at(10**6), 6),
        (at(61, timezone(timedelta(hours=-7))), 4),
    ],
)
def test_a_text_means_a_number_a_name_or_a_time(text: str, number: int) -> None:
    assert choose(text, PAST, "--to").decision.checkpoint_id == number


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5", "--to: checkpoint 5 is not there; there are checkpoints 3, 4, 6, 8 and savepoints"),
        ("9" * 5000, f"--to: checkpoint {'9' * 20}… is not there; there are checkpoints 3, 4"),
        ("0001-01-01", "'0001-01-01' is a time before the year 1 or after the year 9999 in UTC"),
        ("0001-01-01T00:00+14:00", r"'0001-01-01T00:00\+14:00' is a time before the year 1"),
        ("9999-12-31T23:59-12:00", "'9999-12-31T23:59-12:00' is a time before the year 1"),
        ("", "'' is no checkpoint's number, no savepoint's name and no time"),
        ("Before", "'Before' is no checkpoint's number"),
        (at(-1), "no checkpoint began at or before"),
        ("²", "no time"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose(text, PAST, "--to")


def test_a_name_that_looks_like_a_number_or_a_time_is_a_name() -> None:
    past = (candidate(1, at_s=0), candidate(2, at_s=1, name="1"), candidate(3, at_s=2, name=at(0)))

    assert choose("1", past, "--to").decision.checkpoint_id == 2
    assert choose(at(0), past, "--to").decision.checkpoint_id == 3


def test_a_name_that_two_savepoints_have_is_not_guessed() -> None:
    past = (candidate(1, at_s=0, name="a"), candidate(2, at_s=1, name="a"))

    with pytest.raises(ConfigError, match=r"several savepoints are called a; .*: 1, 2"):
        choose("a", past, "--to")


def test_a_time_finds_the_last_decided_one_also_after_a_rewind_gave_it_an_older_number() -> None:
    """The order is that of the log: a rewind is later than what it goes back behind."""
    past = (candidate(5, at_s=0), candidate(7, at_s=50), candidate(6, at_s=50))

    assert choose(at(50), past, "--to").decision.checkpoint_id == 6


def test_an_offer_is_short() -> None:
    past = tuple(candidate(number, at_s=number) for number in range(1, 100))

    assert offer(past) == "there are checkpoints 1, 2, 3, …, 96, 97, 98, 99"
    assert offer(()) == "the pipeline has no checkpoints"


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime.fromtimestamp(BASE_MS / 1000, tz=UTC).astimezone()

    assert milliseconds_of(local.replace(tzinfo=None).isoformat(sep=" ")) == BASE_MS
    assert milliseconds_of(time_text(BASE_MS)) == BASE_MS
    assert milliseconds_of("2026-11-13T14:00:00Z") == 1_794_578_400_000
    assert milliseconds_of("tomorrow") is None


def test_a_checkpoint_is_called_by_what_it_is() -> None:
    assert [candidate.title for candidate in PAST] == [
        "checkpoint 3",
        "savepoint before (checkpoint 4)",
        "checkpoint 6",
        "checkpoint 8",
    ]
    lost = Candidate(replace(DAMAGED.decision, kind=CheckpointKind.SAVEPOINT), None)
    assert lost.title == "savepoint (its name is lost) (checkpoint 8)"

"""Chooses the target checkpoint: by number, by a savepoint's name, or by a time.

Pure: the log and the manifests have been read. Every decided cut whose manifest still exists can be
chosen, even if a later rewind has undone it. A time stands for the last checkpoint that began at or
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cutwater.errors import ConfigError
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import Decision

_DIGITS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decided checkpoint that can be chosen; `cut` is None if its manifest is damaged."""

    decision: Decision
    cut: Cut | None

    @property
    def name(self) -> str | None:
        return None if self.cut is None else self.cut.name

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        number = self.decision.checkpoint_id
        if self.decision.kind is CheckpointKind.SAVEPOINT:
            return f"savepoint {self.name or '(its name is lost)'} (checkpoint {number})"
        return f"checkpoint {number}"


def choose(text: str, candidates: Sequence[Candidate], option: str) -> Candidate:
    """Return the checkpoint that a number, the name of a savepoint, or a time means.

    Candidates are oldest first. ConfigError if there is none, or more than one savepoint of a name.
    """
    text = text.strip()
    named = [candidate for candidate in candidates if candidate.name == text]
    if len(named) > 1:
        numbers = ", ".join(str(candidate.decision.checkpoint_id) for candidate in named)
        raise ConfigError(
            option, f"several savepoints are called {text}; name one by its number: {numbers}"
        )
    if named:
        return named[0]
    if text.isascii() and text.isdigit():
        return _find_by_number(text, candidates, option)
    try:
        at_ms = milliseconds_of(text)
    except OverflowError as error:
        reason = f"{text!r} is a time before the year 1 or after the year 9999 in UTC"
        raise ConfigError(option, f"{reason}; {offer(candidates)}") from error
    if at_ms is None:
        reason = f"{text!r} is no checkpoint's number, no savepoint's name and no time"
        raise ConfigError(option, f"{reason}; {offer(candidates)}")
    before = [
        candidate
        for candidate in candidates
        if candidate.cut is not None and candidate.cut.started_at_ms <= at_ms
    ]
    if not before:
        raise ConfigError(option, f"no checkpoint began at or before {text}; {offer(candidates)}")
    return before[-1]


def _find_by_number(text: str, candidates: Sequence[Candidate], option: str) -> Candidate:
    # Compared as text: Python refuses to parse a number of thousands of digits.
    number = text.lstrip("0") or "0"
    for candidate in candidates:
        if str(candidate.decision.checkpoint_id) == number:
            return candidate
    shown = number if len(number) <= _DIGITS_MAX else f"{number[:_DIGITS_MAX]}…"
    raise ConfigError(option, f"checkpoint {shown} is not there; {offer(candidates)}")


def offer(candidates: Sequence[Candidate]) -> str:
    """List the checkpoints that can be chosen, for an error message."""
    if not candidates:
        return "the pipeline has no checkpoints"
    numbers = [str(candidate.decision.checkpoint_id) for candidate in candidates]
    listed = ", ".join(numbers if len(numbers) <= 8 else [*numbers[:3], "…", *numbers[-4:]])
    names = ", ".join(sorted(candidate.name for candidate in candidates if candidate.name))
    return f"there are checkpoints {listed}" + (f" and savepoints {names}" if names else "")


def milliseconds_of(text: str) -> int | None:
    """Return the time that a text in ISO 8601 means, local unless it names a zone; None if none.

    OverflowError if the year in UTC is below 1 or above 9999.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        # A time without a zone is local time.
        return int(at.astimezone(UTC).timestamp() * 1000)
    except ValueError as error:
        # Python raises ValueError for a time without a zone, OverflowError for one with a zone.
        raise OverflowError(str(error)) from error


def time_text(at_ms: int) -> str:
    """Return a time as text: local, with its offset from UTC."""
    at = datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone()
    return at.isoformat(sep=" ", timespec="seconds")

"""When a sink's rows may be seen: the two options that every kind of target can have.

`commit_every` is the min interval between commits of a target; `visibility` is whether its rows
become visible at commits only. A target with these options has the attribute `delivery`
(`Delivered`); any other target is committed at every checkpoint. All sinks of a pipeline commit
together, or their tables would disagree. So the largest `commit_every` applies to the whole
pipeline (ADR 0020).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from cutwater.errors import ConfigError
from cutwater.protocol.options import CheckpointOptions
from cutwater.store.records.targets import VISIBILITY
from cutwater.units import milliseconds


@dataclass(frozen=True, slots=True)
class Delivery:
    """When rows may be seen; made by `delivery`.

    Attributes:
        every_ms: From one commit to the next, at least; 0 for every checkpoint.
        shows_batches: Whether rows are seen as soon as their batch is staged, and may be revised
            after a failure, instead of at commits only.
    """

    every_ms: int = 0
    shows_batches: bool = False

    def stored(self) -> Mapping[str, tuple[str, ...]]:
        """Return what the store must record: recovery may have to roll a table back."""
        return {VISIBILITY: ("batch",)} if self.shows_batches else {}


AT_CHECKPOINTS: Final = Delivery()


@runtime_checkable
class Delivered(Protocol):
    """A target with options about when its rows may be seen."""

    @property
    def delivery(self) -> Delivery:
        """When its rows may be seen."""
        ...


def delivery(commit_every: str | None = None, visibility: str = "checkpoint") -> Delivery:
    """Check the options as a user writes them: a duration such as `1m`, and a visibility."""
    if visibility not in {"checkpoint", "batch"}:
        raise ConfigError("visibility", f"{visibility!r} is neither 'checkpoint' nor 'batch'")
    every_ms = 0 if commit_every is None else milliseconds(commit_every, "commit_every")
    if not every_ms and commit_every is not None:
        reason = "must be above zero; leave it out to commit at every checkpoint"
        raise ConfigError("commit_every", f"{commit_every!r} {reason}")
    return Delivery(every_ms, visibility == "batch")


def delivery_of(target: object) -> Delivery:
    return target.delivery if isinstance(target, Delivered) else AT_CHECKPOINTS


def with_commit_interval(
    options: CheckpointOptions, targets: Iterable[object]
) -> CheckpointOptions:
    """Return the options of a pipeline with these targets: the largest interval applies."""
    every_ms = max((delivery_of(target).every_ms for target in targets), default=0)
    return replace(options, commit=replace(options.commit, every_ms=every_ms))

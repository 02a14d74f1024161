"""How a step runs, and the keywords by which a user says so.

`StepOptions` holds every option, checked; the `…Keywords` say which of them a kind of node takes.
Options that concern pace and state belong to steps alone: whoever wants them for a view or a source
declares a step behind it. A program without types may pass anything, so everything is checked.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, get_args

from cutwater.config.options import Unaligned
from cutwater.errors import ConfigError
from cutwater.units import milliseconds, size_bytes

OutputMode = Literal["append", "update", "complete"]
"""Spark's output modes: new rows, changed rows, or the whole result after every batch."""

OUTPUT_MODES: Final[tuple[str, ...]] = get_args(OutputMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step runs. The keywords below say which of them a kind of node takes.

    Attributes:
        output_mode: What a batch puts out: `append`, `update` or `complete`.
        partitions: Of the step's shuffles and state, for its whole life; None for the default.
        trigger: The shortest time from batch to batch, such as `1s`; None for at once.
        max_batch: The most that one batch reads from channels, such as `64MB`; None for no limit.
        updates: The step reads an update-mode input and keeps, of each batch, the newest row for
            each key; these are the key columns. Empty for a step that reads appended rows.
        alignment_timeout: How long after a checkpoint's start the step waits for its barriers
            before it lets one overtake; None for `checkpoint.alignment_timeout`.
        unaligned: Whether the step lets barriers overtake data: True for when its patience ends,
            `"forced"` for at once, False for never; None for `checkpoint.unaligned`. Whatever feeds
            a step that never overtakes does not overtake either. With `checkpoint.unaligned` off
            no step overtakes.
        chain: For a source: it may run inside the step that reads it.
    """

    output_mode: OutputMode = "append"
    partitions: int | None = None
    trigger: str | None = None
    max_batch: str | None = None
    updates: tuple[str, ...] = ()
    alignment_timeout: str | None = None
    unaligned: Unaligned | None = None
    chain: bool = True

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ConfigError: Naming the option.
        """
        if self.output_mode not in OUTPUT_MODES:
            known = ", ".join(OUTPUT_MODES)
            raise ConfigError("output_mode", f"{self.output_mode!r} is none of {known}")
        if self.partitions is not None and (
            type(self.partitions) is not int or self.partitions < 1
        ):
            raise ConfigError("partitions", f"{self.partitions!r} is not a whole number above 0")
        if self.trigger_ms == 0:
            raise ConfigError("trigger", f"{self.trigger!r} is no time; leave it out for at once")
        if self.max_batch_bytes == 0:
            raise ConfigError("max_batch", f"{self.max_batch!r} would never read anything")
        object.__setattr__(
            self, "updates", _strings("updates", self.updates, "columns such as ['id']")
        )
        self._check_alignment()

    def _check_alignment(self) -> None:
        unaligned = self.unaligned
        if unaligned is not None and type(unaligned) is not bool and unaligned != "forced":
            raise ConfigError("unaligned", f"{unaligned!r} is none of True, False, 'forced'")
        if self.alignment_timeout_ms is not None and unaligned in (False, "forced"):
            why = "overtakes at once" if unaligned else "never overtakes"
            reason = f"{self.alignment_timeout!r} has no effect with unaligned={unaligned!r}"
            raise ConfigError(
                "alignment_timeout", f"{reason}, since the step {why}; leave one of the two out"
            )

    @property
    def alignment_timeout_ms(self) -> int | None:
        """`alignment_timeout` as a number."""
        text = self.alignment_timeout
        return None if text is None else milliseconds(text, "alignment_timeout")

    @property
    def aligns(self) -> str:
        """What the step says about alignment, as it was written; empty if nothing."""
        said = []
        if self.unaligned is not None:
            said.append(f"unaligned={self.unaligned!r}")
        if self.alignment_timeout is not None:
            said.append(f"alignment_timeout={self.alignment_timeout!r}")
        return " and ".join(said)

    @property
    def trigger_ms(self) -> int | None:
        """`trigger` as a number."""
        return None if self.trigger is None else milliseconds(self.trigger, "trigger")

    @property
    def max_batch_bytes(self) -> int | None:
        """`max_batch` as a number."""
        return None if self.max_batch is None else size_bytes(self.max_batch, "max_batch")


class SourceKeywords(TypedDict, total=False):
    """What `Pipeline.source` takes as keywords."""

    name: str | None
    chain: bool


class ViewKeywords(TypedDict, total=False):
    """What `Pipeline.view` takes as keywords."""

    name: str | None
    inputs: Sequence[str] | None


class StepKeywords(ViewKeywords, total=False):
    """What `Pipeline.step` takes as keywords; `StepOptions` says what they mean."""

    output_mode: OutputMode
    partitions: int | None
    trigger: str | None
    max_batch: str | None
    updates: Sequence[str]
    alignment_timeout: str | None
    unaligned: Unaligned | None


def options_in(keywords: Mapping[str, object], owner: str, known: Collection[str]) -> StepOptions:
    """Return the options among the keywords.

    Args:
        keywords: What the user gave, `name` and `inputs` included.
        owner: What the keywords are given to, with its article, for the error.
        known: The keywords it takes.

    Raises:
        ConfigError: If there is no such keyword, or its value cannot work.
    """
    for keyword in sorted(set(keywords).difference(known)):
        close = difflib.get_close_matches(keyword, sorted(known), n=1)
        hint = f"{close[0]} may be meant" if close else f"it takes {', '.join(sorted(known))}"
        raise ConfigError(keyword, f"{owner} has no such option; {hint}")
    names = ViewKeywords.__optional_keys__
    given: dict[str, Any] = {key: value for key, value in keywords.items() if key not in names}
    return StepOptions(**given)


def inputs_in(keywords: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the names in `inputs=`; None if there is no such keyword.

    Raises:
        ConfigError: If it is no list of names; one string is refused, being a list of letters.
    """
    inputs = keywords.get("inputs")
    return None if inputs is None else _strings("inputs", inputs, "names such as ['orders']")


def _strings(option: str, value: object, what: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise ConfigError(option, f"{value!r} is not a list of {what}")

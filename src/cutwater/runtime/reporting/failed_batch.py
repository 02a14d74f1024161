"""Explains a failed step: its cause, the line of the user's code, and the input of its batch.

Spark wraps an error of a user's function in several layers and a hundred lines of trace. The author
of the function needs the line in their own file and the innermost cause.

A restart goes back to the last checkpoint and reads the same rows again. When the restarts are used
up, the error must name the file or the offsets. Batches may be cut differently the second time, so
the files that all failures in a row have read are the likely cause.
"""

import re
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from cutwater.errors import CutwaterError, StepError
from cutwater.ids import BatchId, StepId
from cutwater.pipeline.nodes import Node
from cutwater.planning.physical_plan import PhysicalStep

_SHOWN_MAX: Final = 3
_OFFSET_MAX: Final = 200
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_RAISED: Final = re.compile(
    r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<text>.*)$"
)
_CAUSED: Final = re.compile(r"Caused by: (?P<error>[\w.$]+): (?P<text>.*)")
_JAVA: Final = re.compile(r"^: (?P<error>[\w.$]+): (?P<text>.*)$", re.MULTILINE)
_READING: Final = re.compile(r"[Rr]eading (?:Parquet )?file:? (\S+?)[,.]?(?=\s|$)")
_WRITING: Final = re.compile(r"Task failed while writing rows to (\S+?)\.?(?=\s|$)")
_LENGTH_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class FailedInput:
    """What one batch read of one stream.

    Attributes:
        what: The unit of the bounds: `Events` of a channel, or `offsets`.
        start: Its start, as the source writes it.
    """

    name: str
    what: str
    start: str
    end: str
    files: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it as the object of a sentence with "reads"."""
        if self.files:
            shown = ", ".join(self.files[:_SHOWN_MAX])
            more = len(self.files) - _SHOWN_MAX
            rest = f" and {more} more" if more > 0 else ""
            noun = "the file" if len(self.files) == 1 else f"{len(self.files)} files:"
            return f"{noun} {shown}{rest} ({self.name})"
        start, end = _short(self.start), _short(self.end)
        return f"{self.what} of {self.name} from {start} to {end}"


@dataclass(frozen=True, slots=True)
class FailedBatch:
    step: StepId
    batch: BatchId
    inputs: tuple[FailedInput, ...] = ()

    def meets(self, other: "FailedBatch") -> bool:
        if self.step != other.step:
            return False
        mine, others = self.files, other.files
        return bool(mine & others) if mine and others else self.batch == other.batch

    @property
    def files(self) -> frozenset[str]:
        return frozenset(file for stream in self.inputs for file in stream.files)

    def only(self, files: frozenset[str]) -> "FailedBatch":
        """Return the same batch with only these files, for streams that read any of them."""
        left = tuple(
            FailedInput(
                stream.name,
                stream.what,
                stream.start,
                stream.end,
                tuple(file for file in stream.files if file in files) or stream.files,
            )
            for stream in self.inputs
        )
        return FailedBatch(self.step, self.batch, left)


@dataclass(slots=True)
class Failures:
    """The consecutive failures of a run on the same input."""

    _row: list[FailedBatch] = field(default_factory=list)

    def note(self, failed: FailedBatch | None) -> None:
        """Record a failure; None if its input is not known."""
        if failed is None or not (self._row and failed.meets(self._row[-1])):
            self._row.clear()
        if failed is not None:
            self._row.append(failed)

    def explain(self, error: CutwaterError) -> CutwaterError:
        """Return the error with the input of the last failed batch, if that is known."""
        if not self._row or not isinstance(error, StepError) or not self._row[-1].inputs:
            return error
        last = self._row[-1]
        common = frozenset.intersection(*(failed.files for failed in self._row))
        reads = "; ".join(stream.text() for stream in last.only(common).inputs)
        times = f", at which it failed {len(self._row)} times in a row," if self._row[1:] else ""
        reason = f"{error.reason} Batch {last.batch}{times} reads {reads}."
        return StepError(error.step, error.where, reason)


def _short(text: str) -> str:
    return text if len(text) <= _OFFSET_MAX else f"{text[:_OFFSET_MAX]}…"


def events_of(channel: str, start: int, end: int) -> FailedInput:
    return FailedInput(channel, "Events", str(start), str(end))


def drop_unread(found: Sequence[FailedInput | None]) -> tuple[FailedInput, ...]:
    return tuple(stream for stream in found if stream is not None)


def cause_of(error: BaseException, files: Collection[str] = ()) -> tuple[str, str]:
    """Return the place in the user's files an error comes from, and its cause in one line.

    The place is `file:line in function`; empty if none is known.
    """
    if isinstance(error, CutwaterError):
        return "", error.message
    text = str(error)
    where = ""
    for frame in _FRAME.finditer(text):
        if frame["file"] in files:
            where = f"{frame['file']}:{frame['line']} in {frame['function']}"
    raised = [found for line in text.splitlines() if (found := _RAISED.match(line.strip()))]
    if raised and (where or "Traceback" in text):
        reason = f"{raised[-1]['error']}: {raised[-1]['text']}"
    elif caused := _CAUSED.findall(text) or _JAVA.findall(text):
        kind, message = caused[-1]
        reason = f"{kind.rsplit('.', 1)[-1]}: {message}"
    else:
        reason = first_line(error)
    read = _READING.findall(text)
    if read and read[-1] not in reason:
        reason = f"{reason.rstrip('.')} (while reading {read[-1]})"
    written = _WRITING.findall(text)
    if written and "No space left on device" in reason:
        reason = f"{reason.rstrip('.')} (while writing to {written[-1]})"
    return where, _one_line(reason)


def first_line(error: BaseException) -> str:
    first = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    shortened = line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]}…"
    return shortened if shortened.endswith((".", "!", "?", "…")) else f"{shortened}."


def failing_place(step: PhysicalStep, error: BaseException) -> tuple[str, str]:
    """Find the line of the user's code that an error comes from, and the node it belongs to."""
    files = {node.place.file for node in step.nodes}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename in files]
    functions = {node.function_name: node for node in step.nodes}
    found = (functions[frame.name] for frame in reversed(lines) if frame.name in functions)
    node = next(found, named_node(step))
    place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else str(node.place)
    return place, node.title


def named_node(step: PhysicalStep) -> Node:
    """Return the node that the step is named after: a sink after it has no code of its own."""
    return next(node for node in step.nodes if node.name == step.name)

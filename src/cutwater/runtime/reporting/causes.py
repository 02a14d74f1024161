"""Why a step failed, in words for the person who wrote it.

Spark wraps an error of a user's function in several layers and a hundred lines of trace. What a
person needs is the line of their own file and the last cause.
"""

import re
import traceback
from collections.abc import Collection
from typing import Final

from cutwater.errors import CutwaterError
from cutwater.pipeline.nodes import Node
from cutwater.planning.physical_plan import PhysicalStep

_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_RAISED: Final = re.compile(
    r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<text>.*)$"
)
_CAUSED: Final = re.compile(r"Caused by: (?P<error>[\w.$]+): (?P<text>.*)")
_JAVA: Final = re.compile(r"^: (?P<error>[\w.$]+): (?P<text>.*)$", re.MULTILINE)
_READING: Final = re.compile(r"[Rr]eading (?:Parquet )?file:? (\S+?)[,.]?(?=\s|$)")
_WRITING: Final = re.compile(r"Task failed while writing rows to (\S+?)\.?(?=\s|$)")
_LENGTH_MAX: Final = 400


def cause_of(error: BaseException, files: Collection[str] = ()) -> tuple[str, str]:
    """Find where in the user's files an error comes from, and its cause in one line.

    Args:
        error: The error, as Spark or Python raised it.
        files: The user's files.

    Returns:
        The place as `file:line in function`, empty if none is known; and the cause.
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
    """Give an error's kind and the first line of its text."""
    first = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    shortened = line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]}…"
    return shortened if shortened.endswith((".", "!", "?", "…")) else f"{shortened}."


def failing_place(step: PhysicalStep, error: BaseException) -> tuple[str, str]:
    """Find the line of the user's code that an error comes from, and the node it belongs to."""
    files = {node.place.file for node in step.nodes}
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename in files]
    functions = {node.function_name: node for node in step.nodes}
    found = (functions[one.name] for one in reversed(lines) if one.name in functions)
    node = next(found, named_node(step))
    place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else str(node.place)
    return place, node.title


def named_node(step: PhysicalStep) -> Node:
    """Return the node that the step is called after: a sink behind it has no code of its own."""
    return next(one for one in step.nodes if one.name == step.name)

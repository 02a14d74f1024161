"""The registry of declared nodes: where each was declared, and which node may replace another.

In a notebook a cell runs many times, and each time its node replaces the previous one. In a program
a second node of the same name is a mistake, for example in a loop: the first node would silently
disappear. The two cases are distinguished by the location of the code and by whether the code was
run again.
"""

import inspect
import re
from types import CodeType, FrameType
from typing import Final, NamedTuple

from cutwater.errors import DeclarationError
from cutwater.pipeline.nodes import Function, Node, SourceLocation

NAME_LENGTH_MAX: Final = 100
"""Names become directories and parts of object names, beside numbers that need space too."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_OWN_MODULES: Final = frozenset({__name__, "cutwater.pipeline.pipeline"})


class Origin(NamedTuple):
    """Where something was declared, and in which run of that code.

    Attributes:
        place: The line of the user's code.
        run: The code of the module or notebook cell that was running. Each run of a cell and each
            load of a module compiles it again, so the object identifies the run.
    """

    place: SourceLocation
    run: CodeType | None


def current_origin() -> Origin:
    """Return where the user's code has called into this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in _OWN_MODULES:
        frame = frame.f_back
    if frame is None:
        return Origin(SourceLocation("<unknown>", 0), None)
    return Origin(SourceLocation(frame.f_code.co_filename, frame.f_lineno), _running_module(frame))


def _running_module(frame: FrameType) -> CodeType | None:
    found: FrameType | None = frame
    while found is not None and not _is_module_level(found):
        found = found.f_back
    return found.f_code if found is not None else None


def _is_module_level(frame: FrameType) -> bool:
    # The flag is checked first because reading the locals of a function's frame copies them.
    in_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    return not in_function and frame.f_locals is frame.f_globals


def check_name(name: object, owner: str, place: SourceLocation) -> str:
    """Return the name if it can be one; owner, with its article, and place are for the error."""
    if name is None or name in ("", "<lambda>"):
        raise DeclarationError(str(place), f"{owner} needs a name; give it one with name=")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            str(place),
            f"{name!r} cannot be the name of {owner}: a name has the letters a to z and A to Z, "
            "digits, _ and - only, and does not begin with -",
        )
    if len(name) > NAME_LENGTH_MAX:
        raise DeclarationError(
            str(place),
            f"the name {name[:20]}… of {owner} has {len(name)} characters, "
            f"at most {NAME_LENGTH_MAX} are possible",
        )
    return name


class Declarations:
    """The nodes of one pipeline, by name, in the order they were first declared."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._runs: dict[str, CodeType | None] = {}
        # Functions of replaced nodes stay: `of=` must still know them as that node's.
        self._functions: list[tuple[Function, str]] = []

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def add(self, node: Node, run: CodeType | None) -> None:
        """Add the node; it replaces a node of the same name if it is that node, declared again."""
        before = self._nodes.get(node.name)
        if before is not None:
            self._check_replacement(before, node, is_same_run=self._runs[node.name] is run)
        self._nodes[node.name] = node
        self._runs[node.name] = run
        if node.name not in self.names_of(node.function):
            self._functions.append((node.function, node.name))

    def names_of(self, function: Function) -> tuple[str, ...]:
        """Return the names of the nodes that are, or once were, made of the function."""
        return tuple(
            name for known, name in self._functions if known == function and name in self._nodes
        )

    @staticmethod
    def _check_replacement(before: Node, after: Node, *, is_same_run: bool) -> None:
        if before.place.is_in_a_file and after.place.is_in_a_file:
            if before.place != after.place:
                raise DeclarationError(
                    str(after.place),
                    f"{after.title} has the name of {before.title}, declared at {before.place}; "
                    "give one of them another name",
                )
            if is_same_run:
                raise DeclarationError(
                    str(after.place),
                    f"{after.title} is declared twice by this line, as in a loop that gives two "
                    "nodes one name; the first would be lost",
                )
        # A lambda, or a sink that takes a node as it is, has no name to compare.
        names = {node.function_name for node in (before, after) if node.function_name}
        if len(names) > 1:
            raise DeclarationError(
                str(after.place),
                f"{after.title} would replace {before.title}, declared at {before.place} from "
                f"another function; give one of them another name",
            )

"""What a user can put right: options, declarations, plans.

Found before anything is started or written.
"""

from typing import ClassVar

from cutwater.errors.base import CutwaterError


class UserError(CutwaterError):
    """Something the user wrote or asked for cannot work."""

    code = "CW-100"


class ConfigError(UserError):
    """An option has a value that cannot work.

    Attributes:
        option: The option's name as the user writes it.
    """

    code = "CW-101"
    parameters: ClassVar[tuple[str, ...]] = ("option", "reason")
    next_step = "Change the option and start again; nothing was written."

    def __init__(self, option: str, reason: str) -> None:
        """Name the option and say why its value cannot work."""
        super().__init__(f"{option}: {reason}.")
        self.option = option
        self.reason = reason


class DeclarationError(UserError):
    """A pipeline, or one of its nodes, is declared in a way that cannot work.

    Attributes:
        where: The line that declares it, as `file:line`.
        reason: What is wrong with it.
    """

    code = "CW-102"
    parameters: ClassVar[tuple[str, ...]] = ("where", "reason")
    next_step = "Change the declaration and run it again; nothing was started."

    def __init__(self, where: str, reason: str) -> None:
        """Name the line and say what is wrong with it."""
        super().__init__(f"{where}: {reason}.")
        self.where = where
        self.reason = reason


class PlanError(UserError):
    """The nodes of a pipeline do not fit together; all that is wrong is said at once.

    Attributes:
        pipeline: The pipeline's name.
        problems: One sentence each, beginning with its `file:line`.
    """

    code = "CW-103"
    next_step = "Change the pipeline and plan it again; nothing was started."

    def __init__(self, pipeline: str, *problems: str) -> None:
        """Name the pipeline and list all that is wrong with it."""
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"pipeline {pipeline} has {count}:{listed}\n")
        self.pipeline = pipeline
        self.problems = problems

    def __str__(self) -> str:
        """Give the code, one line per problem, and what to do next on a line of its own."""
        return f"[{self.code}] {self.message}{self.next_step}"

    def __reduce__(self) -> tuple[type["PlanError"], tuple[str, ...]]:
        """Pickle by the arguments, not by the finished message."""
        return (type(self), (self.pipeline, *self.problems))


class AdoptionRefused(PlanError):
    """Plain queries cannot be adopted as they are; all that stands against it is said at once.

    Attributes:
        pipeline: The pipeline's name.
        problems: One sentence or more each, beginning with the step.
    """

    code = "CW-104"
    next_step = "Nothing was decided, and the queries are as they were."

"""Every error Cutwater raises, in one tree, each with a stable code and a next step.

    CutwaterError
    ├── UserError              something the user wrote or asked for
    │   └── ConfigError        CW-101  an option has a value that cannot work
    └── ProtocolViolation      CW-201  an event that the protocol forbids in this state
        └── InvariantBroken    CW-202  a promise of PROTOCOL.md does not hold

Expected outcomes (a duplicate acknowledgement, a lost race, nothing to recover) are enums, not
errors. All classes survive pickling, since they cross process boundaries on Spark.
"""

from typing import ClassVar


class CutwaterError(Exception):
    """Base of all errors of this package; never raised itself.

    Attributes:
        code: The stable code of the error class, such as `CW-101`.
        retryable: Whether the same call may succeed later without any change.
        next_step: What the person who reads the message can do about it.
    """

    code: ClassVar[str] = "CW-000"
    retryable: ClassVar[bool] = False
    next_step: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        """Keep the plain message; `str()` adds the code and the next step."""
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """Give the code, the message and what to do next."""
        text = f"[{self.code}] {self.message}"
        return f"{text} {self.next_step}" if self.next_step else text


class UserError(CutwaterError):
    """Something the user wrote or asked for cannot work."""

    code = "CW-100"


class ConfigError(UserError):
    """An option has a value that cannot work.

    Attributes:
        option: The option's name as the user writes it.
    """

    code = "CW-101"
    next_step = "Change the option and start again; nothing was written."

    def __init__(self, option: str, reason: str) -> None:
        """Name the option and say why its value cannot work."""
        super().__init__(f"{option}: {reason}.")
        self.option = option
        self.reason = reason

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, str]]:
        """Pickle by the two arguments, not by the finished message."""
        return (type(self), (self.option, self.reason))


class ProtocolViolation(CutwaterError):
    """An event arrived that the protocol forbids in the machine's present state.

    The machine that raises it has not changed: a caller that can go on may go on.
    """

    code = "CW-201"
    next_step = "This is a defect of Cutwater, not of your pipeline: please report it."


class InvariantBroken(ProtocolViolation):
    """A numbered promise of PROTOCOL.md does not hold.

    Attributes:
        invariant: Its number, such as `I4`.
    """

    code = "CW-202"

    def __init__(self, invariant: str, reason: str) -> None:
        """Name the invariant and what contradicts it."""
        super().__init__(f"{invariant} does not hold: {reason}.")
        self.invariant = invariant
        self.reason = reason

    def __reduce__(self) -> tuple[type["InvariantBroken"], tuple[str, str]]:
        """Pickle by the two arguments, not by the finished message."""
        return (type(self), (self.invariant, self.reason))

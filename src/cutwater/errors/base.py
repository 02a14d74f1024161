"""The root of all errors: a code, a sentence, a next step; and how one is pickled.

What a user sees is always one of the kinds in the modules beside this one.
"""

from typing import ClassVar


class CutwaterError(Exception):
    """Base of all errors of this package; never raised itself.

    Attributes:
        code: The stable code of the error class, such as `CW-101`.
        retryable: Whether the same call may succeed later without any change.
        next_step: What the person who reads the message can do about it.
        parameters: The attributes that hold its arguments, in order: it is pickled by them and
            not by the finished message.
    """

    code: ClassVar[str] = "CW-000"
    retryable: ClassVar[bool] = False
    next_step: ClassVar[str] = ""
    parameters: ClassVar[tuple[str, ...]] = ("message",)

    def __init__(self, message: str) -> None:
        """Keep the plain message; `str()` adds the code and the next step."""
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """Give the code, the message and what to do next."""
        text = f"[{self.code}] {self.message}"
        return f"{text} {self.next_step}" if self.next_step else text

    def __reduce__(self) -> tuple[type["CutwaterError"], tuple[object, ...]]:
        """Pickle by the arguments."""
        return (type(self), tuple(getattr(self, one) for one in self.parameters))

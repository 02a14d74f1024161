"""What can be wrong with a store: nothing there, damage, no answer.

Whether the same call may be repeated is part of the kind.
"""

from typing import ClassVar

from cutwater.errors.base import CutwaterError


class StoreError(CutwaterError):
    """The store did not do what was asked of it.

    Attributes:
        path: The object's path in the store.
        reason: What is wrong, in words that follow the path.
    """

    code = "CW-300"
    parameters: ClassVar[tuple[str, ...]] = ("path", "reason")
    next_step = "Look at the object and at the store's address."

    def __init__(self, path: str, reason: str) -> None:
        """Name the object and say what is wrong with it."""
        super().__init__(f"{path}: {reason}.")
        self.path = path
        self.reason = reason


class NotFound(StoreError):
    """There is no object of that name, and the store itself is there to say so."""

    code = "CW-301"
    parameters: ClassVar[tuple[str, ...]] = ("path",)
    next_step = "Check the name and the store's address; what was deleted does not come back."

    def __init__(self, path: str) -> None:
        """Name the object."""
        super().__init__(path, "there is no such object")


class Conflict(StoreError):
    """Something else has that name already; it was left as it is."""

    code = "CW-302"
    next_step = "Nothing was overwritten; find out who else writes to this store."


class Corrupt(StoreError):
    """An object is not what was written, or one is missing where there must be one."""

    code = "CW-303"
    next_step = "Bring it back from a copy, or rewind to a checkpoint that does not need it."


class Unavailable(StoreError):
    """The store cannot be read or written at the moment; the call has changed nothing."""

    code = "CW-304"
    retryable = True
    next_step = "Nothing was changed; try again when the cause is gone."


class OutcomeUnknown(StoreError):
    """A write may or may not have happened, or may not outlive a crash of the machine."""

    code = "CW-305"
    next_step = "Read it back before anything else; do not assume either."


class NewerFormat(StoreError):
    """An object is whole but written in a format that this version does not know.

    Attributes:
        found: The format it is written in.
        supported: The newest format this version reads.
    """

    code = "CW-306"
    parameters: ClassVar[tuple[str, ...]] = ("path", "found", "supported")
    next_step = "Use the version of Cutwater that wrote it, or a newer one."

    def __init__(self, path: str, found: int, supported: int) -> None:
        """Name the object and both formats."""
        super().__init__(path, f"it has format {found}, and this version reads up to {supported}")
        self.found = found
        self.supported = supported


class InvalidPath(StoreError):
    """A name that no object can have was asked for; the store was not touched."""

    code = "CW-307"
    next_step = "This is a defect of Cutwater, not of your pipeline: please report it."

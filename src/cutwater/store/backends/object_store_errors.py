"""What a failed request to an object store means: was it done, and may it be sent again?

An object store is behind a network, so there are two kinds of "no". A request that was refused, or
never arrived, changed nothing. One whose answer was lost may have been carried out, and nobody may
say that it was not (rule F15). obstore tells them apart by its exception classes and, where it has
only one class for all, in the text of the message; whatever is not understood counts as lost.
"""

import re
from enum import Enum, auto
from typing import Final

from obstore import exceptions

Failed = (exceptions.BaseError, FileNotFoundError)
"""What obstore raises when a request fails; "not found" is Python's own error."""

_FINAL: Final = (
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
)
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
# The last request of an upload in parts, which obstore may have sent before, unanswered.
_COMPLETES: Final = re.compile(r"performing (POST \S*[?&]uploadId=|PUT \S*[?&]comp=blocklist)")
_NOT_NOW: Final = frozenset({409, 429})
_TOO_SLOW: Final = 408
_ABSENT_OBJECT: Final = re.compile(r"NoSuchKey|BlobNotFound|PathNotFound|No such object")
_TAKEN: Final = re.compile(r"status code: 412|BlobAlreadyExists")
_CREDENTIALS: Final = re.compile(r"https?://(169\.254\.\d+\.\d+|metadata)\b")
_WORDS: Final = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)
_QUERY: Final = re.compile(r"\?\S+")
_WORDS_MAX: Final = 300


class Failure(Enum):
    """What is known of a request that failed."""

    ABSENT = auto()
    """There is no such object, or no such bucket. Nothing was changed."""
    REFUSED = auto()
    """It was refused, and would be again. Nothing was changed."""
    NOT_NOW = auto()
    """It never arrived, or was put off. Nothing was changed; it may be sent again."""
    LOST = auto()
    """It may or may not have been carried out."""


def failure_of(error: Exception) -> Failure:
    """Say what is known of a request that failed with one of `Failed`."""
    if _COMPLETES.search(str(error)):
        return Failure.LOST
    if isinstance(error, FileNotFoundError):
        return Failure.ABSENT
    if isinstance(error, _FINAL):
        return Failure.REFUSED
    status = _STATUS.search(str(error))
    code = int(status[1]) if status else 0
    if "kind: Connect" in str(error) or code in _NOT_NOW:
        return Failure.NOT_NOW
    return Failure.REFUSED if 400 <= code < 500 and code != _TOO_SLOW else Failure.LOST


def object_is_absent(error: Exception) -> bool:
    """Say whether a 404 names the object; if not, it may be the bucket that is not there."""
    return _ABSENT_OBJECT.search(str(error)) is not None


def name_is_taken(error: Exception) -> bool:
    """Say whether a refused create names the object as the reason.

    A store may also answer that somebody else is writing at this moment, and then there need be
    no object afterwards.
    """
    return _TAKEN.search(str(error)) is not None


def words(error: Exception) -> str:
    """Say what went wrong in one line: no stack, no XML, and no query, which may be signed."""
    text = str(error).partition("\n\nDebug source")[0]
    if _CREDENTIALS.search(text):
        return "no credentials were found in the environment, nor any that this machine is given"
    said = _WORDS.search(text)
    text = f"{said[1]}: {said[2]}" if said else _QUERY.sub("", text)
    return " ".join(text.split())[:_WORDS_MAX].rstrip(".")

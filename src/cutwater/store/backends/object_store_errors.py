"""Classifies failed requests to an object store: was the request executed, and is a retry safe?

A network lies between us and the object store, so there are two kinds of failure. A request that
was refused, or never arrived, changed nothing. A request whose answer was lost may have been
executed, and must not be treated as if it had not (rule F15). obstore distinguishes the two by its
exception classes and, where it has only one class for both, by the text of the message. A failure
that is not recognised counts as lost.
"""

import re
from enum import Enum, auto
from typing import Final

from obstore import exceptions

Failed = (exceptions.BaseError, FileNotFoundError)
"""The exceptions that obstore raises for failed requests; "not found" is Python's own error."""

_FINAL: Final = (
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
)
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
# The last request of a multipart upload; obstore may have sent it before without an answer.
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
    """What is known about a failed request."""

    ABSENT = auto()
    """There is no such object, or no such bucket. Nothing was changed."""
    REFUSED = auto()
    """It was refused, and a retry would be too. Nothing was changed."""
    NOT_NOW = auto()
    """It never arrived, or was deferred. Nothing was changed; a retry is safe."""
    LOST = auto()
    """It may or may not have been executed."""


def failure_of(error: Exception) -> Failure:
    """Classify a request that failed with one of `Failed`."""
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
    """Return whether a 404 names the object; otherwise the bucket may be missing."""
    return _ABSENT_OBJECT.search(str(error)) is not None


def name_is_taken(error: Exception) -> bool:
    """Return whether a refused create names the object as the reason.

    A store may also refuse because another write is in progress, and then there may be no object
    afterwards.
    """
    return _TAKEN.search(str(error)) is not None


def words(error: Exception) -> str:
    """Describe the failure in one line, without stack, XML, or query, which may be signed."""
    text = str(error).partition("\n\nDebug source")[0]
    if _CREDENTIALS.search(text):
        return "no credentials were found in the environment, nor any that this machine is given"
    said = _WORDS.search(text)
    text = f"{said[1]}: {said[2]}" if said else _QUERY.sub("", text)
    return " ".join(text.split())[:_WORDS_MAX].rstrip(".")

"""A streaming source that lives in the driver's own process and gives Spark native plans.

Spark calls its v1 `Source` interface on the query's own thread, and py4j forwards the call. A
source returns an offset (a small JSON object) or a native Spark plan. So no Python process is
between the data and Spark, columns are pruned and filters are pushed down (docs/adr/0007).
"""

import itertools
import json
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.errors import CutwaterError, RecoveryError
from cutwater.runtime.reporting.failed_batch import first_line
from cutwater.spark.jvm.callbacks import returns_java
from cutwater.spark.jvm.internals import ADMISSION_INTERFACE, SOURCE_INTERFACE, Internals

Offset = Mapping[str, int | str]
"""The position of a source, as it is written to a query's offset log."""


def encode_offset(offset: Offset) -> str:
    """Return an offset as text; equal offsets give equal text, which is how Spark compares."""
    return json.dumps(offset, sort_keys=True, separators=(",", ":"))


def decode_offset(text: str, keys: frozenset[str], owner: str) -> dict[str, Any]:
    """Read an offset back; RecoveryError if it is not one of this source (rule F16)."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or set(found) != keys:
        message = f"{owner} cannot start at {text!r}, which is an offset of another source."
        raise RecoveryError(message)
    return found


def _in_one_line(answer: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for Spark, and shorten an error to one line.

    Spark searches the text of an error with a pattern that overflows the stack on a long text, and
    the text of an error that came from Java has a hundred lines.
    """
    try:
        return answer(*arguments)
    except CutwaterError as error:
        raise SourceFailed(str(error)) from None
    except Exception as error:  # noqa: BLE001 - it is raised again, shorter
        raise SourceFailed(first_line(error)) from None


class ExpectedCallbackError(Exception):
    """Raised on purpose to make Spark end a callback; the cause is reported elsewhere."""


class SourceFailed(ExpectedCallbackError):
    """Raised when a source fails; contains the error in one line."""


class _ExpectedErrorFilter(logging.Filter):
    """Keeps py4j from logging a stack trace of an `ExpectedCallbackError`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], ExpectedCallbackError))


_EXPECTED_ERROR_FILTER: Final = _ExpectedErrorFilter()


def hush_callbacks() -> None:
    """Log no stack trace when a batch is stopped; may be called again."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_EXPECTED_ERROR_FILTER)


_SERIALS = itertools.count(1)
_ALIVE: "weakref.WeakValueDictionary[str, NativeSource]" = weakref.WeakValueDictionary()


def native_source(text: str) -> "NativeSource | None":
    """Return the source with this name in Spark's plans; None for a foreign source."""
    return _ALIVE.get(text)


class NativeSource(ABC):
    """One source of one query. Called on the query's stream thread only, unless noted otherwise."""

    def __init__(self, internals: Internals, schema: StructType) -> None:
        """Create a source with this schema. `describe` must already work."""
        self.internals = internals
        self.spark_schema = schema
        self.available_now = False
        self._java_schema = internals.java_schema(schema)
        self._serial = next(_SERIALS)
        _ALIVE[self.toString()] = self

    def frame(self) -> DataFrame:
        """Return the streaming DataFrame that reads this source."""
        return self.internals.streaming_frame(self)

    @abstractmethod
    def describe(self) -> str:
        """Return a human-readable name."""

    @abstractmethod
    def latest(self, start: str | None) -> str | None:
        """Return where the next batch may end, at or after `start`.

        Args:
            start: Where the last batch ended; None before the first.

        Returns:
            An offset; None if there has never been anything.
        """

    @abstractmethod
    def batch(self, start: str | None, end: str) -> Any:
        """Return the rows between two offsets as a Java Dataset that is streaming."""

    def exhausted(self, offset: str | None) -> bool:  # noqa: ARG002
        """Return whether no row will follow an offset; a source that has an end overrides it."""
        return False

    @property
    def has_end(self) -> bool:
        """Whether the source has an end."""
        return True

    # -- org.apache.spark.sql.execution.streaming.Source and SupportsTriggerAvailableNow

    @returns_java
    def schema(self) -> Any:
        """Return the schema. Called by Spark."""
        return self._java_schema

    @returns_java
    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: ARG002
        """Return the max end of the next batch. Called by Spark."""
        end = _in_one_line(self.latest, None if start is None else str(start.json()))
        return None if end is None else self.internals.offset(end)

    @returns_java
    def getOffset(self) -> Any:
        """Return the end without a start. Called by Spark where it passes none."""
        end = self.latest(None)
        return self.internals.some(None if end is None else self.internals.offset(end))

    @returns_java
    def getBatch(self, start: Any, end: Any) -> Any:
        """Return the rows of one batch. Called by Spark."""
        first = str(start.get().json()) if start.isDefined() else None
        return _in_one_line(self.batch, first, str(end.json()))

    @returns_java
    def getDefaultReadLimit(self) -> Any:
        """Return no limit: the source limits itself. Called by Spark."""
        return self.internals.read_all()

    def prepareForTriggerAvailableNow(self) -> None:
        """Record that the query ends when it has read what is there now. Called by Spark."""
        self.available_now = True

    def reportLatestOffset(self) -> Any:
        """Return nothing beyond what `latestOffset` returned. Called by Spark."""
        return None

    def initialOffset(self) -> Any:
        """Raise: a v1 source starts without an offset."""
        message = "a v1 source has no initial offset"
        raise NotImplementedError(message)

    @returns_java
    def deserializeOffset(self, text: str) -> Any:
        """Return the offset of a text. Called by Spark."""
        return self.internals.offset(text)

    def commit(self, end: Any) -> None:  # noqa: B027 - there is nothing to override
        """Do nothing: positions move when a batch is appended, never here (rule F17)."""

    def stop(self) -> None:  # noqa: B027 - there is nothing to override
        """Do nothing: the code that started the query releases its resources."""

    def toString(self) -> str:
        """Return the unique name of the source in Spark's messages and plans."""
        return f"{self.describe()} [native {self._serial}]"

    def hashCode(self) -> int:
        """Identify the object in Spark's maps."""
        return id(self) % 2**31

    def equals(self, other: object) -> bool:
        """Identify the object in Spark's maps."""
        return self is other

    class Java:
        """Declares to py4j which interfaces a source implements."""

        implements: ClassVar[list[str]] = [SOURCE_INTERFACE, ADMISSION_INTERFACE]

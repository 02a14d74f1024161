"""A streaming source that lives in the driver's own process and hands Spark native plans.

Spark asks its v1 `Source` interface on the query's own thread; py4j carries the question here. What
is answered is an offset (a small JSON object) or a native Spark plan, so no Python process stands
between the data and Spark, columns are pruned and filters pushed down (docs/adr/0007).
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
from cutwater.spark.jvm.internals import ADMISSION_INTERFACE, SOURCE_INTERFACE, Internals

Offset = Mapping[str, int | str]
"""Where a source stands, as it is written to a query's offset log."""


def encode_offset(offset: Offset) -> str:
    """Return an offset as text; equal offsets give equal text, which is how Spark compares."""
    return json.dumps(offset, sort_keys=True, separators=(",", ":"))


def decode_offset(text: str, keys: frozenset[str], owner: str) -> dict[str, Any]:
    """Read an offset back.

    Raises:
        RecoveryError: If it is not an offset of this source (rule F16).
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or set(found) != keys:
        message = f"{owner} cannot start at {text!r}, which is an offset of another source."
        raise RecoveryError(message)
    return found


def _in_one_line(answer: Callable[..., Any], *arguments: Any) -> Any:
    """Answer Spark; an error reaches it as one line.

    Spark searches an error's text with a pattern that overflows its stack on a long one, and the
    text of an error that Java raised in the first place is a hundred lines.
    """
    try:
        return answer(*arguments)
    except CutwaterError as error:
        raise SourceFailed(str(error)) from None
    except Exception as error:  # noqa: BLE001 - it is raised again, shorter
        raise SourceFailed(first_line(error)) from None


class Told(Exception):
    """What Spark is told when a callback of ours cannot go on; never news to anybody else."""


class SourceFailed(Told):
    """What Spark is told when a source could not answer."""


class _NotTold(logging.Filter):
    """Keeps py4j from printing a trace of what we have told Spark on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through unless it is about such an error."""
        return not (record.exc_info and isinstance(record.exc_info[1], Told))


_NOT_TOLD: Final = _NotTold()


def hush_callbacks() -> None:
    """Let a stop in the middle of a batch pass without a trace; may be called again."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_NOT_TOLD)


_SERIALS = itertools.count(1)
_ALIVE: "weakref.WeakValueDictionary[str, NativeSource]" = weakref.WeakValueDictionary()


def native_source(text: str) -> "NativeSource | None":
    """Return the source that calls itself so in Spark's plans; None for a source of Spark's."""
    return _ALIVE.get(text)


class NativeSource(ABC):
    """One source of one query. Called on the query's stream thread only, unless said otherwise."""

    def __init__(self, internals: Internals, schema: StructType) -> None:
        """Answer for a source with this schema. `describe` must already work."""
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
        """Name the source for people."""

    @abstractmethod
    def latest(self, start: str | None) -> str | None:
        """Return where the next batch may end, at or behind `start`.

        Args:
            start: Where the last batch ended; None before the first.

        Returns:
            An offset; None if there has never been anything.
        """

    @abstractmethod
    def batch(self, start: str | None, end: str) -> Any:
        """Return the rows between two offsets as a Java Dataset that is streaming."""

    def exhausted(self, offset: str | None) -> bool:  # noqa: ARG002
        """Say whether nothing will ever follow an offset; a source that has an end overrides it."""
        return False

    @property
    def has_end(self) -> bool:
        """Whether the source ends by itself one day."""
        return True

    # -- org.apache.spark.sql.execution.streaming.Source and SupportsTriggerAvailableNow

    def schema(self) -> Any:
        """Answer Spark."""
        return self._java_schema

    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: ARG002
        """Answer Spark: how far may the next batch go."""
        end = _in_one_line(self.latest, None if start is None else str(start.json()))
        return None if end is None else self.internals.offset(end)

    def getOffset(self) -> Any:
        """Answer a Spark that does not ask with a start."""
        end = self.latest(None)
        return self.internals.some(None if end is None else self.internals.offset(end))

    def getBatch(self, start: Any, end: Any) -> Any:
        """Answer Spark: the rows of one batch."""
        first = str(start.get().json()) if start.isDefined() else None
        return _in_one_line(self.batch, first, str(end.json()))

    def getDefaultReadLimit(self) -> Any:
        """Answer Spark: the source limits itself."""
        return self.internals.read_all()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note that the query runs until what is there now is read."""
        self.available_now = True

    def reportLatestOffset(self) -> Any:
        """Answer Spark: nothing to report beside what `latestOffset` said."""
        return None

    def initialOffset(self) -> Any:
        """Answer Spark; a v1 source begins without an offset."""
        message = "a v1 source has no initial offset"
        raise NotImplementedError(message)

    def deserializeOffset(self, text: str) -> Any:
        """Answer Spark."""
        return self.internals.offset(text)

    def commit(self, end: Any) -> None:  # noqa: B027 - there is nothing to override
        """Ignore Spark: positions move when a batch is appended, never here (rule F17)."""

    def stop(self) -> None:  # noqa: B027 - there is nothing to override
        """Ignore Spark: who started the query ends what belongs to it."""

    def toString(self) -> str:
        """Name the source in Spark's own messages and plans; no two have the same name."""
        return f"{self.describe()} [native {self._serial}]"

    def hashCode(self) -> int:
        """Be found in Spark's maps."""
        return id(self) % 2**31

    def equals(self, other: object) -> bool:
        """Be found in Spark's maps."""
        return self is other

    class Java:
        """Tells py4j which interfaces a source answers for."""

        implements: ClassVar[list[str]] = [SOURCE_INTERFACE, ADMISSION_INTERFACE]

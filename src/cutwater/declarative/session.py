"""The session that definition files see as `spark`: datasets of the project are read through it.

A flow reads another dataset by its name, with `spark.table`, `spark.read.table`,
`spark.readStream.table` or `spark.sql`. While Cutwater calls the flow, such a name is answered by a
`DatasetReader`; every other name and every other call goes to the real session. `spark-pipelines`
injects `spark` into a definition file, and its guide obtains it by `SparkSession.active()`; both
give this object, also to code that pyspark runs for the user, such as a UDF that is made.

The reader is known per thread, because steps call their functions in threads of their own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.streaming.readwriter import DataStreamReader

from cutwater.declarative.names import parts_of
from cutwater.errors import ConfigError
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.plans.relations import Relations

if TYPE_CHECKING:
    from cutwater.spark.jvm.plans.relations import FindRelation


class DatasetReader(Protocol):
    """Answers the names that a flow reads."""

    def read(self, parts: tuple[str, ...], *, streaming: bool) -> DataFrame | None:
        """Return the rows of a dataset of the project; None for a name that is none of its.

        Args:
            parts: The name, in one to three parts.
            streaming: Whether the flow reads it as a stream.
        """
        ...


class NeedsSpark(Exception):
    """A definition file uses the session while it is imported, and Spark has not started."""


class EffectRefused(Exception):
    """A flow changes something; the end of a sentence that begins with the flow."""


class ProjectSession:
    """Stands for the session in definition files; the real one is set when Spark has started."""

    def __init__(self) -> None:
        self._real: SparkSession | None = None

    def start(self, spark: SparkSession) -> None:
        self._real = spark

    @property
    def real(self) -> SparkSession:
        if self._real is None:
            raise NeedsSpark
        return self._real

    # Code that checks for a session must find one.
    @property  # type: ignore[misc]
    def __class__(self) -> type[SparkSession]:  # type: ignore[override]
        return SparkSession

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a session has
        return getattr(self.real, name)

    @property
    def conf(self) -> Any:  # noqa: ANN401 - Spark's, or one that refuses changes
        return _unchanging(self.real.conf, "spark.conf")

    @property
    def catalog(self) -> Any:  # noqa: ANN401
        return _unchanging(self.real.catalog, "spark.catalog")

    @property
    def udf(self) -> Any:  # noqa: ANN401
        return _unchanging(self.real.udf, "spark.udf")

    @property
    def udtf(self) -> Any:  # noqa: ANN401
        return _unchanging(self.real.udtf, "spark.udtf")

    @property
    def read(self) -> DataFrameReader:
        return _BatchReader(self.real)

    @property
    def readStream(self) -> DataStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(self.real)

    def table(self, tableName: str) -> DataFrame:  # noqa: N803 - Spark's name
        return self.read.table(tableName)

    def sql(
        self,
        sqlQuery: str,  # noqa: N803 - Spark's name
        args: Any = None,  # noqa: ANN401
        **frames: Any,  # noqa: ANN401
    ) -> DataFrame:
        """Run a query whose relations may be datasets of the project."""
        text, real, reader = sqlQuery, self.real, current_reader()
        if reader is None:
            return real.sql(text, args, **frames)
        if frames:
            reason = "has DataFrames among its parameters; combine them by their methods instead"
            raise ConfigError("spark.sql", reason)
        relations = Relations(Internals(real))
        command = relations.command(text)
        if command is not None:
            raise EffectRefused(f"runs {command} by spark.sql, and a flow only describes rows")
        if not args:
            found = relations.query(text, _finding(reader))
            return real.sql(text) if found is None else found
        if relations.names_any(text, _finding(reader)):
            reason = "reads a dataset of the project and has parameters; put them into the text"
            raise ConfigError("spark.sql", reason)
        return real.sql(text, args)


_CHANGES: Final = frozenset(
    {
        "cacheTable",
        "clearCache",
        "createExternalTable",
        "createTable",
        "dropGlobalTempView",
        "dropTempView",
        "recoverPartitions",
        "register",
        "registerFunction",
        "registerJavaFunction",
        "registerJavaUDAF",
        "set",
        "setCurrentCatalog",
        "setCurrentDatabase",
        "uncacheTable",
        "unset",
    }
)
"""The methods of a session's settings, catalog and functions that change what other flows see."""

_VIEWS: Final = (
    "createGlobalTempView",
    "createOrReplaceGlobalTempView",
    "createOrReplaceTempView",
    "createTempView",
)
"""The same for the methods of a DataFrame."""

_SHARED: Final = "and all flows share one session"


def _unchanging(real: object, title: str) -> object:
    """Return an object of the session; in a definition file, without what changes something."""
    return real if _STANDING_IN.get() is None else _Unchanging(real, title)


class _Unchanging:
    """Refuses changes; everything else goes to the real object."""

    def __init__(self, real: object, title: str) -> None:
        self._real, self._title = real, title

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        if name in _CHANGES:
            where = "put settings into the configuration of the spec"
            if name.startswith("register"):
                where = "call the function itself, which F.udf returns"
            raise EffectRefused(f"calls {self._title}.{name}, {_SHARED}; {where}")
        return getattr(self._real, name)


class _BatchReader(DataFrameReader):
    """Spark's reader of tables, for names that are none of the project's."""

    def table(self, tableName: str) -> DataFrame:  # noqa: N803 - Spark's name
        found = _find(tableName, streaming=False)
        return super().table(tableName) if found is None else found


class _StreamReader(DataStreamReader):
    """The same for streams."""

    def table(self, tableName: str) -> DataFrame:  # noqa: N803 - Spark's name
        found = _find(tableName, streaming=True)
        return super().table(tableName) if found is None else found


def _find(name: object, *, streaming: bool) -> DataFrame | None:
    reader = current_reader()
    if reader is None or not isinstance(name, str):
        return None
    try:
        parts = parts_of(name)
    except ValueError:
        # Spark refuses it with a reason of its own.
        return None
    return reader.read(parts, streaming=streaming)


def _finding(reader: DatasetReader) -> "FindRelation":
    def find(parts: tuple[str, ...], streaming: bool) -> DataFrame | None:
        return reader.read(parts, streaming=streaming)

    return find


# -- which session and which reader this thread has

_STANDING_IN: ContextVar[tuple[ProjectSession, DatasetReader | None] | None] = ContextVar(
    "cutwater_project_session", default=None
)
_INSTALLING: Final = threading.Lock()
_INSTALLED: Final[list[bool]] = []


def current_reader() -> DatasetReader | None:
    """Return what answers names in this thread; None outside of flows."""
    standing = _STANDING_IN.get()
    return None if standing is None else standing[1]


@contextmanager
def standing_in(session: ProjectSession, reader: DatasetReader | None = None) -> Iterator[None]:
    """Let this thread's `SparkSession.active()` give the session, and a reader answer its names."""
    _install()
    token = _STANDING_IN.set((session, reader))
    try:
        yield
    finally:
        _STANDING_IN.reset(token)


def _install() -> None:
    """Let pyspark return the project's session where one stands in; for good, since it is cheap."""
    with _INSTALLING:
        if _INSTALLED:
            return
        _INSTALLED.append(True)
        # By name, since a type checker knows that methods are not replaced.
        for name in ("active", "getActiveSession"):
            original = getattr(SparkSession, name)
            setattr(SparkSession, name, classmethod(_or_standing_in(original)))
        method = "getOrCreate"
        original = getattr(SparkSession.Builder, method)
        setattr(SparkSession.Builder, method, _or_standing_in(original, bound=False))
        for name in _VIEWS:
            setattr(ClassicFrame, name, _unless_standing_in(name, getattr(ClassicFrame, name)))


def _unless_standing_in(name: str, original: Callable[..., None]) -> Callable[..., None]:
    def refuse(frame: DataFrame, *given: Any, **named: Any) -> None:  # noqa: ANN401
        if _STANDING_IN.get() is not None:
            where = "declare a temporary view of the project"
            raise EffectRefused(f"calls DataFrame.{name}, {_SHARED}; {where}")
        original(frame, *given, **named)

    return refuse


def _or_standing_in(original: Callable[..., Any], *, bound: bool = True) -> Callable[..., Any]:
    def give(owner: object) -> Any:  # noqa: ANN401
        standing = _STANDING_IN.get()
        if standing is not None:
            return standing[0]
        return original() if bound else original(owner)

    return give

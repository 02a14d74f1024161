"""Ranges of a source of files: the list of the files that a batch reads.

The list has the size and the modification time of each file. A file that is gone or has changed
since is an error: a reader gets the rows that were there, or none.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from cutwater.errors import RunError
from cutwater.runtime.channel import Channel
from cutwater.sinks.base import STRICT_READING
from cutwater.spark.analysis import plan_nodes
from cutwater.spark.analysis.logical_plan import all_of, pairs_of
from cutwater.spark.jvm.by_reference.source_ranges import Range, SourceFile, lost
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_sink import PlannedBatch

_SEPARATOR: Final = "\0"
"""What stands between the values of a list that comes from the JVM in one call."""
_PATTERN: Final = re.compile(r"([\\*?\[\]{}])")
"""The characters with which Hadoop takes a path for a pattern."""
_STATUS: Final = re.compile(
    r"path=(?P<path>.*?); isDirectory=false; length=(?P<size>\d+);"
    r".*?modification_time=(?P<modified>\d+);",
    re.DOTALL,
)
_FILE_SOURCE: Final = "FileSource["
_FORMATS: Final = frozenset({"avro", "orc", "parquet"})
_NOT_FOUND: Final = "PATH_NOT_FOUND"
_NOT_PASSED_ON: Final = frozenset({"path", "paths", *(name.lower() for name in STRICT_READING)})
_METADATA: Final = "_metadata"


def is_file_source(leaf: Any) -> bool:
    kind = str(leaf.getClass().getSimpleName())
    return kind == plan_nodes.STREAM and str(leaf.sourceName()).startswith(_FILE_SOURCE)


def why_not_files(leaf: Any) -> str | None:
    """Return why readers of a source of files might see different rows; None if they cannot."""
    kind = str(leaf.dataSource().className())
    if kind.lower() not in _FORMATS:
        # What a text reader takes for a damaged record depends on the columns that are read.
        return f"reads {kind}, and only {', '.join(sorted(_FORMATS))} give every reader the same"
    options = {name.lower(): value for name, value in pairs_of(leaf.dataSource().options())}
    for name in (name.lower() for name in STRICT_READING):
        if options.get(name, "false").lower() != "false":
            return f"has the option {name}, under which readers may see different rows"
    names = [str(name) for name in leaf.schema().fieldNames()]
    if _METADATA in names:
        return f"reads the column {_METADATA}"
    if _PATTERN.search(options.get("path", "")) and _partition_columns(leaf):
        return "reads directories of partitions by a pattern, which readers would not recognize"
    return None


class FileRanges:
    """Ranges of a source of files: each batch names its files."""

    def __init__(self, internals: Internals, leaf: Any) -> None:
        self._internals = internals
        stream = leaf.dataSource()
        options = dict(pairs_of(stream.options()))
        self._format = str(stream.className())
        self._base = next((options[name] for name in options if name.lower() == "path"), None)
        self._options = {
            **{name: options[name] for name in options if name.lower() not in _NOT_PASSED_ON},
            **STRICT_READING,
        }
        self._schema = StructType.fromJson(json.loads(leaf.schema().json()))
        self._layout: tuple[str, ...] | None = None

    def planned(self, rows: PlannedBatch) -> Range | None:
        files = _status_of(rows.leaf)
        if not files:
            return None
        self._check_layout(files)
        return Range(files=files)

    def _check_layout(self, files: Sequence[SourceFile]) -> None:
        """Refuse files in other directories of partitions than the rest: Spark would drop some.

        Spark finds the values of partition columns in the directories of all files of a relation,
        and a reader that lags reads the files of several batches at once.
        """
        if self._layout is None:
            self._layout = _layout(files[0])
        for file in files:
            if _layout(file) != self._layout:
                message = (
                    f"{file.path} is in directories of {_names(_layout(file))}, and other files of "
                    f"its source in directories of {_names(self._layout)}: a reader of both would "
                    "miss rows. Move it, or declare the source with materialize=True."
                )
                raise RunError(message)

    def size_bytes(self, found: Range) -> int:
        return sum(file.size_bytes for file in found.files)

    def facts(self) -> str:
        return f"{self._format}\n{self._schema.json()}"

    def relation(self, channel: Channel, ranges: Sequence[Range]) -> Any:
        """Let Spark find the files, and compare them with what was there."""
        files = [file for found in ranges for file in found.files]
        self._check_layout(files)
        reader = self._internals.spark.read.format(self._format).options(**self._options)
        if self._base is not None and not _PATTERN.search(self._base):
            reader = reader.option("basePath", self._base)
        paths = [_PATTERN.sub(r"\\\1", file.path) for file in files]
        try:
            frame = reader.schema(self._schema).load(paths)
        except AnalysisException as error:
            if error.getCondition() != _NOT_FOUND:
                raise
            raise lost(channel, str(error).split("\n", 1)[0]) from error
        relation = frame._jdf.queryExecution().analyzed().relation()
        there = _statuses(str(relation.location().allFiles().mkString(_SEPARATOR)))
        for gone in sorted(set(files) - set(there)):
            now = next((file for file in there if file.path == gone.path), None)
            changed = "is gone" if now is None else f"has {_facts(now)} instead of {_facts(gone)}"
            raise lost(channel, f"{gone.path} {changed}")
        return relation

    def check(self, channel: Channel, ranges: Sequence[Range]) -> None:
        self.relation(channel, ranges)


def _partition_columns(leaf: Any) -> tuple[str, ...]:
    """Return the columns whose values are in the names of a stream's directories."""
    return tuple(map(str, all_of(leaf.dataSource().sourceInfo().partitionColumns())))


def _layout(file: SourceFile) -> tuple[str, ...]:
    """Return the columns that the directories of a file name, as in `day=1/hour=2`."""
    directories = unquote(file.path).split("/")[:-1]
    return tuple(name.partition("=")[0] for name in directories if "=" in name)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "no partition"


def _status_of(leaf: Any) -> tuple[SourceFile, ...]:
    """Return the files that a planned batch reads; none if its source has no new ones."""
    if str(leaf.getClass().getSimpleName()) != plan_nodes.RELATION:
        return ()
    location = leaf.relation().location()
    found = _statuses(str(location.allFiles().mkString(_SEPARATOR)))
    planned = int(location.rootPaths().distinct().size())
    if len(found) != planned:
        message = f"{planned - len(found)} of {planned} files are gone that the batch was to read."
        raise RunError(message)
    return found


def _statuses(text: str) -> tuple[SourceFile, ...]:
    """Parse what Hadoop prints about files: one call into the JVM for all of them.

    Spark lists a file several times if its name has characters of a pattern and the batch has
    several files. It would read the file's rows as often.
    """
    found = set()
    for part in filter(None, text.split(_SEPARATOR)):
        status = _STATUS.search(part)
        if status is None:
            message = f"Hadoop describes a file as {part!r}, which is not understood."
            raise RunError(message)
        found.add(SourceFile(status["path"], int(status["size"]), int(status["modified"])))
    return tuple(sorted(found))


def _facts(file: SourceFile) -> str:
    return f"{file.size_bytes} bytes, changed at {file.modified_ms}"

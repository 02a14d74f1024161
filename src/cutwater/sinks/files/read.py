"""Reading a directory of files as it was at a version: the files that its manifest names.

Spark's own reader reads them, wherever they are now: in sight, or taken away and still kept.
"""

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from cutwater.errors import Corrupt, SinkError
from cutwater.ids import SinkId
from cutwater.protocol.cut import Version
from cutwater.sinks.files.manifests import BEGINNING, FileCommits
from cutwater.sinks.files.target import reading_options, remembered_files
from cutwater.sinks.rows import STRICT_READING
from cutwater.store.backends.directories import status
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_files(
    spark: "SparkSession", target: StoredTarget, version: Version, sink: SinkId
) -> "DataFrame":
    """Return the rows of a version.

    Raises:
        SinkError: If it had no rows yet, or is no longer there.
    """
    root, number = Path(target.uri), int(version)
    commits = FileCommits(root)
    if number == BEGINNING:
        raise SinkError(sink, f"nothing was committed to {root} yet: it had no columns then")
    try:
        if number > commits.newest():
            raise SinkError(sink, f"{root} never was at version {number}: it has been made anew")
        commit, files, where = commits.read(number), commits.live(number), commits.where(number)
    except (OSError, ValueError, Corrupt) as error:
        raise SinkError(sink, f"version {number} of {root} cannot be read: {error}") from error
    schema = StructType.fromJson(dict(commit.schema))
    described = remembered_files(target)
    groups: dict[str, list[str]] = {}
    for staged, file in files.items():
        place = where[staged]
        found = status(root / place)
        if found is None:
            raise SinkError(sink, f"{place} of version {number} is gone from {root}")
        if found.st_size != file.size_bytes:
            # Text that was cut short would be read as fewer rows.
            reason = f"has {found.st_size} bytes instead of {file.size_bytes}"
            raise SinkError(sink, f"{place} of version {number} in {root} {reason}")
        # What lies above the directories of the partitions.
        inner = len(Path(file.path).parts)
        above = root.joinpath(*Path(place).parts[:-inner])
        groups.setdefault(str(above), []).append(literal(root / place))
    names = [f"`{name.replace('`', '``')}`" for name in schema.names]
    parts = []
    for base, paths in groups.items():
        reader = spark.read.format(commit.data_format).schema(schema)
        reader = reader.options(**reading_options(described)).options(
            basePath=base, **STRICT_READING
        )
        parts.append(reader.load(paths).select(*names))
    if not parts:
        return spark.createDataFrame([], schema)
    return functools.reduce(lambda one, other: one.unionByName(other), parts)


def literal(path: Path) -> str:
    """Write a path so that Spark takes it as it is, and not as a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", str(path))

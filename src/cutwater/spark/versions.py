"""The versions of Spark that a pipeline runs on, and everything in which they differ.

Channels use Spark's internals, which change from one minor version to the next. Every difference
that Cutwater knows is in the table of this module, and every other module asks the table. A version
that is not in the table is refused, because its tests have never run (docs/adr/0042). This module
does not import pyspark, so `cutwater doctor` can use it where pyspark is not installed.
"""

import re
from dataclasses import dataclass
from typing import Final

from cutwater.errors import SessionError

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"

COLLATED_KEYS: Final = "spark.sql.collation.allowInMapKeys"
FILE_CHECKSUMS: Final = "spark.sql.streaming.checkpoint.fileChecksum.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkVersion:
    """What is particular to one minor version of Spark.

    Attributes:
        minor: Its first two numbers.
        newest: Its newest release, on which the tests run.
        runtime: The package of the classes that run a streaming query.
        checkpointing: The package of the classes that write a query's checkpoint directory.
        names_sinks: Whether `StreamingQueryManager.startQuery` takes the name of a sink.
        globs_selectively: Whether `DataSource.checkAndGlobPathIfNecessary` takes, as its seventh
            argument, which paths may have patterns.
        settings: Those of the settings that not every version has that this one has.
    """

    minor: tuple[int, int]
    newest: str
    runtime: str
    checkpointing: str
    names_sinks: bool
    globs_selectively: bool
    settings: frozenset[str]

    @property
    def name(self) -> str:
        """The version as people write it, such as `4.3`."""
        return ".".join(map(str, self.minor))


VERSIONS: Final = (
    SparkVersion(
        minor=(4, 0),
        newest="4.0.5",
        runtime=_STREAMING,
        checkpointing=_STREAMING,
        names_sinks=False,
        globs_selectively=False,
        settings=frozenset(),
    ),
    SparkVersion(
        minor=(4, 1),
        newest="4.1.4",
        runtime=f"{_STREAMING}.runtime",
        checkpointing=f"{_STREAMING}.checkpointing",
        names_sinks=False,
        globs_selectively=False,
        settings=frozenset({FILE_CHECKSUMS}),
    ),
    SparkVersion(
        minor=(4, 2),
        newest="4.2.1",
        runtime=f"{_STREAMING}.runtime",
        checkpointing=f"{_STREAMING}.checkpointing",
        names_sinks=True,
        globs_selectively=False,
        settings=frozenset({COLLATED_KEYS, FILE_CHECKSUMS}),
    ),
    SparkVersion(
        minor=(4, 3),
        newest="4.3.0",
        runtime=f"{_STREAMING}.runtime",
        checkpointing=f"{_STREAMING}.checkpointing",
        names_sinks=True,
        globs_selectively=True,
        settings=frozenset({COLLATED_KEYS, FILE_CHECKSUMS}),
    ),
)
"""The supported versions, oldest first."""

_FIRST, _LAST = VERSIONS[0], VERSIONS[-1]

PYSPARK: Final = f">={_FIRST.name},<{_LAST.minor[0]}.{_LAST.minor[1] + 1}"
"""The version range that pyproject.toml gives for pyspark."""


def find_version(text: str) -> SparkVersion | None:
    """Return the entry of a version such as `4.3.0`; None if no pipeline runs on it."""
    found = re.match(r"(\d+)\.(\d+)(?!\d)", text)
    if found is None:
        return None
    minor = (int(found[1]), int(found[2]))
    return next((version for version in VERSIONS if version.minor == minor), None)


def has_setting(version: SparkVersion, key: str) -> bool:
    """Return whether a version has a setting; the table lists those that not every version has."""
    return key in version.settings or all(key not in other.settings for other in VERSIONS)


def require_version(text: str) -> SparkVersion:
    """Return the entry of a version.

    Raises:
        SessionError: If no pipeline runs on it.
    """
    version = find_version(text)
    if version is None:
        raise SessionError(
            f"This is Spark {text}, and pipelines run on Spark {_FIRST.name} to {_LAST.name}: they "
            "use Spark's internals, which other versions change. Start the session with one of "
            f"those: pip install 'pyspark{PYSPARK}'."
        )
    return version

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
        keeps_format: Whether a query goes on in the checkpoint format of its directory, whatever
            the session's setting is.
        snapshot_marks: The versions with which a RocksDB snapshot may be marked for it to be read.
        settings: Those of the settings that not every version has that this one has.
    """

    minor: tuple[int, int]
    newest: str
    runtime: str
    checkpointing: str
    names_sinks: bool
    globs_selectively: bool
    keeps_format: bool
    snapshot_marks: frozenset[str]
    settings: frozenset[str]

    @property
    def name(self) -> str:
        return ".".join(map(str, self.minor))


VERSIONS: Final = (
    SparkVersion(
        minor=(4, 0),
        newest="4.0.5",
        runtime=_STREAMING,
        checkpointing=_STREAMING,
        names_sinks=False,
        globs_selectively=False,
        keeps_format=False,
        snapshot_marks=frozenset({"v1", "v2"}),
        settings=frozenset(),
    ),
    SparkVersion(
        minor=(4, 1),
        newest="4.1.4",
        runtime=f"{_STREAMING}.runtime",
        checkpointing=f"{_STREAMING}.checkpointing",
        names_sinks=False,
        globs_selectively=False,
        keeps_format=False,
        snapshot_marks=frozenset({"v1"}),
        settings=frozenset({FILE_CHECKSUMS}),
    ),
    SparkVersion(
        minor=(4, 2),
        newest="4.2.1",
        runtime=f"{_STREAMING}.runtime",
        checkpointing=f"{_STREAMING}.checkpointing",
        names_sinks=True,
        globs_selectively=False,
        keeps_format=False,
        snapshot_marks=frozenset({"v1"}),
        settings=frozenset({COLLATED_KEYS, FILE_CHECKSUMS}),
    ),
    SparkVersion(
        minor=(4, 3),
        newest="4.3.0",
        runtime=f"{_STREAMING}.runtime",
        checkpointing=f"{_STREAMING}.checkpointing",
        names_sinks=True,
        globs_selectively=True,
        keeps_format=True,
        snapshot_marks=frozenset({"v1"}),
        settings=frozenset({COLLATED_KEYS, FILE_CHECKSUMS}),
    ),
)
"""The supported versions, oldest first."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that needs a newer Spark than the oldest that is supported.

    Attributes:
        name: What it is, as the subject of a sentence.
        since: The first version that has it.
        instead: What to do on an older version.
        api: The name under which pyspark has it; empty if it has none.
        node: The node of a streaming plan that fails on older versions; empty for none.
    """

    name: str
    since: tuple[int, int]
    instead: str
    api: str = ""
    node: str = ""

    @property
    def since_name(self) -> str:
        return ".".join(map(str, self.since))


STATE_READING: Final = Feature(
    "reading the state of a step (`cutwater state`, `cutwater.state`)",
    (4, 1),
    "run the pipeline and read its state on Spark 4.1 or newer",
)
DECLARATIVE_PIPELINES: Final = Feature(
    "a declarative project (`spark-pipeline.yml`)",
    (4, 1),
    "write the pipeline in Python, or install a newer pyspark",
    "pipelines",
)
FEATURES: Final = (
    STATE_READING,
    Feature(
        "transformWithState on rows", (4, 1), "use transformWithStateInPandas", "transformWithState"
    ),
    # Spark 4.0 fails in the first batch: one partition writes state, and it expects all.
    Feature("a limit on a stream", (4, 1), "filter the rows", node="GlobalLimit"),
    Feature("a column of the type void", (4, 1), "cast it to another type"),
    Feature("repartitionById", (4, 1), "use repartition", "repartitionById"),
    Feature("the type TIME", (4, 1), "keep the time as a string or a number", "TimeType"),
    DECLARATIVE_PIPELINES,
    Feature("zipWithIndex", (4, 2), "number the rows in another way", "zipWithIndex"),
    Feature("nearestByJoin", (4, 2), "join by a condition", "nearestByJoin"),
)
"""Every feature that some supported version lacks; `cutwater doctor` lists what is missing."""

_FIRST, _LAST = VERSIONS[0], VERSIONS[-1]

PYSPARK: Final = f">={_FIRST.name},<{_LAST.minor[0]}.{_LAST.minor[1] + 1}"
"""The version range that pyproject.toml gives for pyspark."""


@dataclass(frozen=True, slots=True)
class LostState:
    """State that one version writes and no later one can read.

    Attributes:
        operator: The node that keeps it, by the name that a checkpoint has for it.
        reason: Why the others cannot read it.
    """

    operator: str
    written_by: tuple[int, int]
    reason: str


LOST_STATE: Final = (
    LostState(
        "TransformWithStateInPySpark",
        (4, 0),
        "Spark 4.0 marks the snapshots of transformWithState as v2, and later versions read v1",
    ),
)


def lost_state(operator: str, written_by: str, read_by: str) -> str | None:
    """Return why a version cannot read the state that another has written; None if it can.

    The operator has the name that a checkpoint has for it; versions are written as `4.0.5`.
    """
    writer, reader = find_version(written_by), find_version(read_by)
    if writer is None or reader is None or writer is reader:
        return None
    return next(
        (
            lost.reason
            for lost in LOST_STATE
            if (lost.operator, lost.written_by) == (operator, writer.minor)
        ),
        None,
    )


def find_version(text: str) -> SparkVersion | None:
    """Return the entry of a version such as `4.3.0`; None if no pipeline runs on it."""
    found = re.match(r"(\d+)\.(\d+)(?!\d)", text)
    if found is None:
        return None
    minor = (int(found[1]), int(found[2]))
    return next((version for version in VERSIONS if version.minor == minor), None)


def unread_marks(marks: frozenset[str], text: str) -> tuple[str, ...]:
    """Return the marks of RocksDB snapshots that a version such as `4.1.4` cannot read."""
    version = find_version(text)
    return () if version is None else tuple(sorted(marks - version.snapshot_marks))


def missing_features(version: SparkVersion) -> tuple[Feature, ...]:
    return tuple(feature for feature in FEATURES if feature.since > version.minor)


def refusal(feature: Feature, text: str) -> str | None:
    """Return why a feature cannot be used on a version such as `4.0.5`; None if it can."""
    version = find_version(text)
    if version is None or feature not in missing_features(version):
        return None
    return f"{feature.name} needs Spark {feature.since_name} or newer, and this is Spark {text}"


def explain_error(error: BaseException, text: str) -> str:
    """Return why the version in use, such as `4.0.5`, is the reason of a user's error, or ""."""
    if not isinstance(error, AttributeError | ImportError):
        return ""
    words = set(re.findall(r"\w+", str(error)))
    for feature in FEATURES:
        reason = refusal(feature, text)
        if reason is not None and feature.api and feature.api in words:
            return f"{reason}; {feature.instead}"
    return ""


def refused_nodes(text: str) -> dict[str, str]:
    """Return the nodes of a streaming plan that fail on a version, each with the reason."""
    return {
        feature.node: f"{reason}; {feature.instead}"
        for feature in FEATURES
        if feature.node and (reason := refusal(feature, text)) is not None
    }


def has_setting(version: SparkVersion, key: str) -> bool:
    """Return whether a version has a setting; the table lists those that not every version has."""
    return key in version.settings or all(key not in other.settings for other in VERSIONS)


def require_version(text: str) -> SparkVersion:
    """Return the entry of a version; SessionError if no pipeline runs on it."""
    version = find_version(text)
    if version is None:
        raise SessionError(
            f"This is Spark {text}, and pipelines run on Spark {_FIRST.name} to {_LAST.name}: they "
            "use Spark's internals, which other versions change. Start the session with one of "
            f"those: pip install 'pyspark{PYSPARK}'."
        )
    return version

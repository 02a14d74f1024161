"""The Spark session that a pipeline runs in: our own, or one that the user hands over, checked.

Steps share one session, so one slow step must not starve the others: FAIR scheduling, a pool per
step. State is RocksDB with changelogs in checkpoint format 2, the only format that a fresh scratch
can be built from safely; shuffles get partitions that fit the cores, since they are pinned for the
life of a step's state. Our own session prints only errors on the terminal, and its JVM does not
receive the terminal's signals, so that a stop can still take its checkpoint.
"""

import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cutwater.config.settings import MASTER_DEFAULT
from cutwater.errors import SessionError
from cutwater.runtime.scratch import private_directory
from cutwater.spark.jvm.callbacks import secure
from cutwater.spark.session.class_archive import with_archive
from cutwater.spark.session.java import cache_directories, make_private, use_java
from cutwater.spark.session.launch import JAVA_OPTIONS, start_jvm
from cutwater.spark.session.requirements import refuse_connect
from cutwater.spark.versions import (
    FILE_CHECKSUMS,
    VERSIONS,
    SparkVersion,
    has_setting,
    require_version,
)
from cutwater.store.backends.directories import is_file

TIME_ZONE: Final = "spark.sql.session.timeZone"

_STATE: Final = "spark.sql.streaming.stateStore"

_NEEDED: Final[Mapping[str, str]] = {
    f"{_STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE}.checkpointFormatVersion": "2",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting the rows of the state costs a read before every write.
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    FILE_CHECKSUMS: "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch over many Events names its files one by one: listing them needs no job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # A query that does not end must not keep the pipeline from ending.
    "spark.sql.streaming.stopTimeout": "60s",
}
"""What every session must have, on every version that has the setting."""

_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

_OWN: Final[Mapping[str, str]] = {
    # A package of Spark's, if it is installed, makes Connect the default.
    "spark.api.mode": "classic",
    "spark.scheduler.mode": "FAIR",
    f"{_STATE}.maintenanceInterval": "15s",
    TIME_ZONE: "UTC",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    **_LOOPBACK,
}
"""What our own session on this machine has besides, but for what depends on its cores."""

# Which of a query's watermarks applies. Spark keeps the policy with the query's state, so `max` is
# refused for every pipeline: after a change of code the pipeline may be one that loses rows.
WATERMARK_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SPARKS_PARTITIONS: Final = "200"
_TEMPORARY_FILES: Final = "java.io.tmpdir"
_LOG_OPTION: Final = "log4j2.configurationFile"
# Off: what these log about a failed batch also arrives as the query's exception, which Cutwater
# reports itself; and a batch that a stop interrupts is no failure. One line of a trace is shown.
_LOG_OFF: Final = (
    "org.apache.spark.broadcast.TorrentBroadcast",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    *sorted({f"{version.runtime}.MicroBatchExecution" for version in VERSIONS}),
    "org.apache.spark.util.Utils",
)
_LOG_SETTINGS: Final = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} Spark %p %c{1}: %m%n%ex{1}
""" + "".join(
    f"logger.off{number}.name = {name}\nlogger.off{number}.level = off\n"
    for number, name in enumerate(_LOG_OFF)
)


def needed_settings(version: SparkVersion) -> dict[str, str]:
    """Return what every session must have, and what can be set while it runs."""
    manager = f"{version.checkpointing}.FileSystemBasedCheckpointFileManager"
    found = {"spark.sql.streaming.checkpointFileManagerClass": manager, **_NEEDED}
    return {key: value for key, value in found.items() if has_setting(version, key)}


def own_settings(version: SparkVersion) -> dict[str, str]:
    """Return the settings of our own session on this machine, but for its cores."""
    return {**needed_settings(version), **_OWN}


def embedded_session(
    master: str = MASTER_DEFAULT,
    *,
    app_name: str = "cutwater",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session with the settings a pipeline needs, and a Java for it.

    Only the first call of a process starts a JVM; memory and Java options are decided then. `conf`
    are the user's settings; they take precedence.

    Raises:
        SessionError: If Spark Connect is requested, pyspark has another version than those that
            are supported, there is no Java, or Spark does not start; with the reason.
    """
    refuse_connect(master, conf or {})
    cores = _local_cores(master)
    # Of pyspark, whose JVM it starts; `prepare_session` goes by the version of the JVM.
    own = own_settings(require_version(pyspark.__version__))
    settings = {key: value for key, value in own.items() if cores or key not in _LOOPBACK}
    if cores:
        settings[_PARTITIONS] = str(cores)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # The workers of a cluster have a Python of their own; here it is this one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings |= conf or {}
    options = with_archive(settings.get(JAVA_OPTIONS, ""), use_java())
    settings[JAVA_OPTIONS] = _with_private_files(_with_quiet_log(options))
    # What it would print about a refused plan, as one huge line, comes to us as the exception.
    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        builder = SparkSession.builder.master(master).appName(app_name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        if SparkContext._gateway is None:  # noqa: SLF001 - pyspark has no other way to ask
            _start(master, app_name, settings)
        session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SessionError(f"Spark did not start on {master}: {_reason(error)}.") from error
    prepare_session(session)
    return session


def check_session(spark: SparkSession) -> tuple[str, ...]:
    """Check a session that the user created; return its harmful settings that are final.

    Each is one or two sentences. Nothing is changed.

    Raises:
        SessionError: If no pipeline can run in it: it is a Spark Connect session, is stopped, has
            a local file system under which Spark loses state, or lets watermarks run ahead of the
            slowest input (rule F9).
    """
    if getattr(spark, "_jsparkSession", None) is None:
        raise SessionError(
            "This is a Spark Connect session, and a pipeline needs a classic one: start it without "
            "a remote address (SPARK_REMOTE, spark.remote) and with spark.api.mode=classic."
        )
    context = spark.sparkContext
    jvm_context = _jvm_context(spark)
    if jvm_context is None or jvm_context.sc().isStopped():
        raise SessionError("This Spark session is stopped: start a new one.")
    kind = _local_file_system(spark).getClass().getName()
    if kind.endswith("RawLocalFileSystem"):
        raise SessionError(
            f"Hadoop's setting fs.file.impl makes {kind} the local file system, under which Spark "
            "never writes a snapshot of its state: start the session without it."
        )
    if str(spark.conf.get(WATERMARK_POLICY)).lower() == "max":
        raise SessionError(
            f"{WATERMARK_POLICY} is max: a checkpoint holds one input of a step while the others "
            "run on, and the rows of the held one would be dropped as late. Set it to min."
        )
    warnings: list[str] = []
    mode = context.getConf().get("spark.scheduler.mode", "FIFO")
    if mode.upper() != "FAIR":
        warnings.append(
            f"spark.scheduler.mode is {mode}: one slow step can hold up all others, and every "
            "checkpoint with them. Start the session with spark.scheduler.mode=FAIR."
        )
    return tuple(warnings)


def prepare_session(spark: SparkSession) -> tuple[str, ...]:
    """Prepare a running session for a pipeline; return what `check_session` found.

    Sets the `needed_settings` and a number of shuffle partitions that fits the cores if none was
    chosen, and turns Hadoop's local checksums off. Can be called again at any time.
    """
    warnings = check_session(spark)
    for key, value in needed_settings(require_version(spark.version)).items():
        if spark.conf.get(key, None) != value:
            spark.conf.set(key, value)
    context = spark.sparkContext
    # Before any query of the user's own starts the port that it secures.
    secure(context._gateway)  # noqa: SLF001 - pyspark has no other way to ask
    untouched = spark.conf.get(_PARTITIONS) == _SPARKS_PARTITIONS
    if untouched and not context.getConf().contains(_PARTITIONS):
        local = _local_cores(str(context.master))
        spark.conf.set(_PARTITIONS, local or max(2, 2 * context.defaultParallelism))
    without_local_checksums(spark)
    return warnings


def without_local_checksums(spark: SparkSession) -> None:
    """Stop Hadoop from writing a `.crc` file beside every file on the driver's local disk.

    They double the cost of a small batch, and everything in the store has Cutwater's own checksum.
    Changing `fs.file.impl` instead would stop RocksDB from writing snapshots, without an error.
    """
    _local_file_system(spark).setWriteChecksum(False)


def use_machine_zone(spark: SparkSession) -> None:
    """Let times without a zone mean those of this machine, as in a session of Spark's own."""
    jvm: Any = spark._jvm  # noqa: SLF001 - as below
    spark.conf.set(TIME_ZONE, str(jvm.java.util.TimeZone.getDefault().getID()))


def ship_by_value(modules: Iterable[ModuleType]) -> None:
    """Send the functions of these modules to Spark's workers by value, with the functions they use.

    Otherwise a worker gets a name to import, from a file that it cannot see. Call this before any
    of their functions is passed to Spark.
    """
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _local_cores(master: str) -> int | None:
    """Return how many cores a master on this machine has; None for a cluster."""
    found = re.fullmatch(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?", master.strip())
    if found is None:
        return None
    if found[1] == "*":
        return os.cpu_count() or 1
    return max(1, int(found[1] or 1))


def _local_file_system(spark: SparkSession) -> Any:  # noqa: ANN401 - an object of the JVM
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way to Hadoop's classes
    address = jvm.java.net.URI("file:///")
    settings = _jvm_context(spark).hadoopConfiguration()
    return jvm.org.apache.hadoop.fs.FileSystem.get(address, settings)


def _jvm_context(spark: SparkSession) -> Any:  # noqa: ANN401 - an object of the JVM
    return spark.sparkContext._jsc  # noqa: SLF001 - as above


def _with_quiet_log(options: str) -> str:
    """Add our logging to the driver's Java options, unless they configure logging."""
    if "log4j" in options:
        return options
    return f"-D{_LOG_OPTION}={_log_settings().as_uri()} {options}".strip()


def _with_private_files(options: str) -> str:
    """Make Spark's temporary files, above all shuffled rows, readable by this user only.

    `spark.local.dir` and SPARK_LOCAL_DIRS still set where shuffled rows are, if they are set.
    """
    if _TEMPORARY_FILES in options:
        return options
    try:
        directory = private_directory("spark")
    except OSError as error:
        raise SessionError(f"there is no directory for Spark's files: {error}.") from error
    return f"{shlex.quote(f'-D{_TEMPORARY_FILES}={directory}')} {options}".strip()


def _log_settings() -> Path:
    """Return the file with our logging; made when it is not there or not what it should be."""
    reasons: list[str] = []
    for cache in cache_directories():
        file = cache / "log4j2.properties"
        try:
            make_private(cache)
            if not is_file(file) or file.read_text() != _LOG_SETTINGS:
                with tempfile.NamedTemporaryFile("w", dir=cache, delete=False) as new:
                    new.write(_LOG_SETTINGS)
                Path(new.name).replace(file)
        except OSError as error:
            reasons.append(f"{cache}: {error.strerror or error}")
        else:
            return file
    raise SessionError(f"there is no directory for Spark's settings ({'; '.join(reasons)}).")


def _start(master: str, app_name: str, settings: Mapping[str, str]) -> None:
    # Names of the user's own are settings of the session alone; spark-submit warns about them.
    known = [(key, value) for key, value in settings.items() if key.startswith("spark.")]
    conf = SparkConf().setMaster(master).setAppName(app_name).setAll(known)
    gateway = start_jvm(dict(conf.getAll()))
    SparkContext(conf=conf, gateway=gateway)


def _reason(error: Exception) -> str:
    """Return the first line of an error from Spark, without the stack trace after it."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage()).partition("\n")[0].rstrip(".")
    return str(error).partition("\n")[0].rstrip(".")

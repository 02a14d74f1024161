"""The Spark session that a pipeline runs in: our own, or one that the user hands over, checked.

Steps share one session, so one slow step must not starve the others: FAIR scheduling, a pool per
step. State is RocksDB with changelogs in checkpoint format 2, the only format that a fresh scratch
can be built from safely; shuffles get partitions that fit the cores, since they are pinned for the
life of a step's state.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

_STATE: Final = "spark.sql.streaming.stateStore"

SETTINGS: Final[Mapping[str, str]] = {
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE}.checkpointFormatVersion": "2",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.maintenanceInterval": "15s",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def embedded_session(
    master: str, *, app_name: str, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session with the settings a pipeline needs, on this machine.

    Args:
        master: Spark's master, such as `local[2]`.
        app_name: What Spark's own pages call it.
        conf: Settings of the user's; they win.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in {**SETTINGS, **(conf or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session

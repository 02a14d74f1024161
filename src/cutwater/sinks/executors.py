"""Whether executors see the driver's disk: asked by everything that hands files over on one.

Below `spark` and the sinks alike, so that channels, scratch and staged files never disagree.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def share_disk(spark: "SparkSession | None") -> bool:
    """Say whether a session's executors see the driver's disk, whatever is mounted where.

    They do where they run on its machine: in its process (`local`, `local[4]`) or in processes of
    their own (`local-cluster[2,1,1024]`). Of any other master nobody can say.

    Args:
        spark: The session; None for whoever has no executors.
    """
    return spark is None or is_one_machine(str(spark.sparkContext.master))


def is_one_machine(master: str) -> bool:
    """Say whether a master runs executors on the driver's machine."""
    kind = master.partition("[")[0]
    return kind in {"local", "local-cluster"}

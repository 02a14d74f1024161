"""Opens a Delta table where it is: its directory, its staged files and the sink over both.

Everything below here needs the package deltalake; `delta` imports it when a table is opened.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from cutwater.ids import SinkId
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.delta.check import check_table
from cutwater.sinks.delta.early_batches import ShowingDeltaTable
from cutwater.sinks.delta.staging import LocalStaging
from cutwater.sinks.delta.storage import LocalRoot
from cutwater.sinks.delta.table import OpenDeltaTable
from cutwater.sinks.delta.writing import Writing
from cutwater.store.backends.location import Location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def open_delta(
    place: Path | Location,
    writing: tuple[str, tuple[str, ...], tuple[str, ...]],
    context: SinkContext,
    *,
    shows: bool = False,
) -> OpenSink:
    """Open a table for one generation.

    Args:
        place: Its directory, or where it is in a bucket.
        writing: How it is written: the way, the keys, the columns that divide it.
        context: Who opens it.
        shows: Whether batches are seen before their checkpoint.

    Raises:
        ConfigError: If it is not a table that can be written in this way.
    """
    way = Writing(*writing)
    opens = ShowingDeltaTable if shows else OpenDeltaTable
    if isinstance(place, Path):
        staging = LocalStaging(place, context.pipeline, context.sink)
        return opens(LocalRoot(place), staging, way, context)
    from cutwater.sinks.delta.storage_s3 import BucketRoot, BucketStaging  # noqa: PLC0415 - extra

    root = BucketRoot(place)
    sent = BucketStaging(root, context.pipeline, context.sink)
    return opens(root, sent, way, context)


def check_delta(
    place: Path | Location,
    writing: tuple[str, tuple[str, ...], tuple[str, ...]],
    sink: SinkId,
    rows: "StructType | None",
) -> str | None:
    """Say why rows cannot go into what is at a place; makes nothing there.

    Raises:
        SinkError: If the place cannot be looked at now.
    """
    if isinstance(place, Path):
        return check_table(LocalRoot(place), Writing(*writing), sink, rows)
    from cutwater.sinks.delta.storage_s3 import BucketRoot  # noqa: PLC0415 - an extra

    return check_table(BucketRoot(place), Writing(*writing), sink, rows)

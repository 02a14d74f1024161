"""One state store of Spark's default provider, "HDFS-backed": which files make a version.

    <version>.delta       what one batch changed
    <version>.snapshot    all there was at a version, made now and then in the background
    _metadata/schema

A version is the newest snapshot up to it and every delta after that; without a snapshot, every
delta from the first. Nothing in a name tells timelines apart, so a file of a batch that was left
behind would be read as if it belonged here: a directory is always filled anew, with these only.
"""

from collections.abc import Iterator
from pathlib import Path

from cutwater.spark.checkpoint_dir.state_files import missing, newest_number, store_metadata


def store_files(store: Path, names: set[str], version: int) -> Iterator[str]:
    """Find the files of one version of one store.

    Args:
        store: The store's directory.
        names: What is in it.
        version: The version.

    Raises:
        RecoveryError: If a file that is needed is not there.
    """
    yield from store_metadata(store, names)
    snapshot = newest_number(names, "snapshot", version)
    if snapshot is not None:
        yield f"{snapshot}.snapshot"
    for number in range((snapshot or 0) + 1, version + 1):
        delta = f"{number}.delta"
        if delta not in names:
            raise missing(store / delta, version)
        yield delta

"""A reader of Delta tables in a bucket that is not deltalake: obstore, and a look at the log."""

import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from cutwater.store.backends.location import Location
from cutwater.store.backends.object_store import RequestLimits


def bucket_at(url: str) -> ObjectStore:
    """Open the place that an address names."""
    limits = RequestLimits()
    return Location.of(url).opener()(limits.client_options, limits.retry_config(1))


def names_in(bucket: ObjectStore) -> list[str]:
    """Return the names of all objects there."""
    return sorted(entry["path"] for chunk in obstore.list(bucket) for entry in chunk)


def rows_in(bucket: ObjectStore) -> Iterator[dict[str, Any]]:
    """Replay the log and give the rows of the files it names."""
    files: dict[str, dict[str, Any]] = {}
    for name in [
        name for name in names_in(bucket) if name.endswith(".json") and "_delta_log" in name
    ]:
        lines = bytes(obstore.get(bucket, name).bytes()).decode().splitlines()
        actions = [json.loads(line) for line in lines]
        for action in actions:
            files.pop(action.get("remove", {}).get("path"), None)
        files |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    for path, action in files.items():
        content = bytes(obstore.get(bucket, unquote(path)).bytes())
        assert len(content) == action["size"]
        for row in pq.read_table(io.BytesIO(content)).to_pylist():
            yield {**action["partitionValues"], **row}

"""What a sink says of a batch in which a key comes twice, the same for every kind of table.

Rows of one batch have no order: Spark reads them from several files in no order it promises. So
none of two rows with one key is the later one, and whichever stayed would be an accident that a
replay might decide otherwise. Rows of different batches do have an order: the later batch wins.
"""

from collections.abc import Mapping

from cutwater.errors import SinkError
from cutwater.ids import SinkId


def key_twice(sink: SinkId, times: int, key: Mapping[str, object]) -> SinkError:
    """Return the refusal of a batch that has several rows with one key.

    Args:
        sink: The sink.
        times: How many rows have the key.
        key: The key, column by column.
    """
    named = ", ".join(f"{name}={_shown(value)}" for name, value in key.items())
    reason = f"one batch has {times} rows with the key {named}, and none is the later one"
    way_out = "aggregate by the key, or drop all but one row of each key, before the sink"
    return SinkError(sink, f"{reason}; {way_out}")


def _shown(value: object) -> str:
    return repr(value) if value is None or isinstance(value, str | bytes) else str(value)

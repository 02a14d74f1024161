"""A channel as a cut left it: the Events in flight, and every reader at its own place.

Rows in flight were written by the code of their time. What the code of today reads of them must be
among them, or nothing starts.
"""

from collections.abc import Iterable

import pyarrow.parquet as pq

from cutwater.errors import RecoveryError
from cutwater.ids import ReaderId, StepId
from cutwater.protocol.channel_log import ChannelLog
from cutwater.protocol.cut import Cut, RecordedEvent
from cutwater.protocol.messages import Watermark
from cutwater.runtime.channel import Channel
from cutwater.store.blobs.blobs import Blobs


def restore_channel(channel: Channel, readers: Iterable[ReaderId], cut: Cut, blobs: Blobs) -> None:
    """Put what was in flight into a channel, and every reader to its own place.

    Raises:
        StoreError: If it cannot be fetched.
    """
    places = {reader: cut.snapshots[reader.step].positions[reader.input] for reader in readers}
    lowest = min(places.values())
    slowest = next(reader for reader in places if places[reader] == lowest)
    recorded = _recorded(cut, slowest)
    log = ChannelLog(channel.id, places, base=lowest, events=[one.event for one in recorded])
    # Watermarks are not recorded with Events: the producer's newest one comes after them all.
    watermark_ms = cut.snapshots[StepId(channel.id)].watermark_ms
    if watermark_ms is not None:
        log.append(Watermark(watermark_ms))
    channel.restore(log)
    files = {
        channel.data / name: ref
        for one in recorded
        for name, ref in zip(one.event.files, one.blobs, strict=True)
    }
    blobs.fetch_files(files)


def _recorded(cut: Cut, reader: ReaderId) -> tuple[RecordedEvent, ...]:
    parts = cut.snapshots[reader.step].in_flight
    return next((part.events for part in parts if part.input == reader.input), ())


def check_in_flight(channel: Channel, reader: ReaderId, read: frozenset[str] | None) -> None:
    """Check that the rows a reader has before it have the columns that it reads.

    Args:
        channel: The channel, restored.
        reader: Who reads it.
        read: The columns that it reads; None for all.

    Raises:
        RecoveryError: If one is missing.
    """
    wanted = frozenset(channel.form.schema.names) if read is None else read
    begin = channel.position(reader)
    for file in channel.paths(channel.events(begin.position, channel.limit(reader))):
        missing = wanted - set(pq.read_schema(file).names)
        if missing:
            message = (
                f"channel {channel.id} holds rows in flight without the columns "
                f"{', '.join(sorted(missing))}, which step {reader.step} reads now. Run the code "
                "as it was until a savepoint is made, which has no rows in flight, and go on "
                "from that."
            )
            raise RecoveryError(message)

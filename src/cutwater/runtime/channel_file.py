"""The log of a channel on disk: every message in order, in segments dropped from the front.

An entry is JSON, except for a barrier: a zero byte, the end of the channel as an unsigned 64-bit
number, and the packed barrier (PROTOCOL.md section 3). Entries are framed by length and checksum: a
reader in another process sees an incomplete entry at the end as "not yet", and a complete one with
a wrong checksum as an error (rule F36).

The running generation uses its index in memory. The file is for inspection from outside, while the
generation runs and after it has died. It is in scratch, and recovery does not need it.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, assert_never

import msgspec

from cutwater.errors import Corrupt, ProtocolViolation
from cutwater.protocol.messages import (
    BARRIER_BYTES,
    Barrier,
    EndOfInput,
    Event,
    Message,
    Place,
    Watermark,
)
from cutwater.store.backends.directories import matching

SEGMENT_ENTRIES: Final = 1000
_SUFFIX: Final = ".log"
_PACKED: Final = struct.Struct(f">BQ{BARRIER_BYTES}s")


@dataclass(slots=True)
class _Segment:
    """One file of the log, with the Events and control messages of the channel up to its end."""

    path: Path
    end: int = 0
    controls: int = 0


class ChannelFile:
    """The writer of one channel's log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._segments: deque[_Segment] = deque()
        self._entries = 0
        self._controls = 0
        self._rolled = 0
        self._file: BinaryIO | None = None

    def append(self, place: Place, message: Message) -> None:
        """Append one message; `place` is the end of the channel after it."""
        if self._file is None or self._entries == SEGMENT_ENTRIES:
            self._roll()
        assert self._file is not None
        self._file.write(framed(_encode(place, message)))
        self._file.flush()
        self._entries += 1
        self._controls += not isinstance(message, Event)
        segment = self._segments[-1]
        segment.end, segment.controls = place.position, self._controls

    def _roll(self) -> None:
        self.close()
        # Numbered: a segment that holds only barriers begins at the same Event as its predecessor.
        path = self._directory / f"{self._rolled:08d}{_SUFFIX}"
        self._rolled += 1
        self._file = path.open("xb")
        self._segments.append(_Segment(path))
        self._entries = 0

    def free(self, base: Place, controls: int) -> None:
        """Delete segments that no reader needs any more, except the one that is being written.

        A pipeline without data still has barriers, so control messages count as Events do.
        """
        while len(self._segments) > 1:
            first = self._segments[0]
            if first.end > base.position or first.controls > controls:
                return
            first.path.unlink(missing_ok=True)
            self._segments.popleft()

    def close(self) -> None:
        """Close the file; a later append begins a new segment."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_entries(directory: Path) -> list[dict[str, object]]:
    """Return the entries of a channel's log, oldest first, as JSON values."""
    return [
        _decode(payload, path.name)
        for path in matching(directory, f"*{_SUFFIX}")
        for payload in payloads(path.read_bytes(), path.name)
    ]


def _decode(payload: bytes, name: str) -> dict[str, object]:
    try:
        if payload[:1] != b"\x00":
            entry: dict[str, object] = msgspec.json.decode(payload)
            return entry
        _, end, packed = _PACKED.unpack(payload)
        barrier = Barrier.unpack(packed)
    except (msgspec.DecodeError, struct.error, ProtocolViolation) as error:
        raise Corrupt(name, f"an entry is no message: {error}") from error
    return {
        "end": end,
        "barrier": barrier.checkpoint_id,
        "generation": barrier.epoch,
        "flags": str(barrier.flags),
        "started_at_ms": barrier.started_at_ms,
    }


def _encode(place: Place, message: Message) -> bytes:
    if isinstance(message, Barrier):
        return _PACKED.pack(0, place.position, message.pack())
    entry: dict[str, object] = {"end": place.position}
    match message:
        case Event():
            entry |= {
                "event": message.batch,
                "rows": message.rows,
                "bytes": message.size_bytes,
                "files": message.files,
            }
        case Watermark():
            entry |= {"watermark_ms": message.value_ms}
        case EndOfInput():
            entry |= {"end_of_input": True}
        case other:
            assert_never(other)
    return msgspec.json.encode(entry)


_HEAD: Final = struct.Struct(">II")


def framed(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def payloads(data: bytes, name: str) -> Iterator[bytes]:
    """Split framed entries, up to the first incomplete one; Corrupt if a checksum is wrong."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(payload) < length:
            return
        if zlib.crc32(payload) != checksum:
            raise Corrupt(name, f"the entry at byte {at} has another checksum")
        yield payload
        at += _HEAD.size + length

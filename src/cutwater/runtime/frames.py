"""Entries of a log file, framed by length and checksum, so that half an entry is never read.

A reader in another process may look while the writer writes: an incomplete entry at the end is
"not yet"; a complete one with the wrong checksum is an error (rule F36).
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from cutwater.errors import Corrupt

_HEAD: Final = struct.Struct(">II")


def framed(payload: bytes) -> bytes:
    """Return the payload with its length and checksum before it."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def payloads(data: bytes, name: str) -> Iterator[bytes]:
    """Take framed entries apart, as far as they are complete.

    Args:
        data: What a log file holds.
        name: The file, for the error.

    Raises:
        Corrupt: If a complete entry is not what was written.
    """
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

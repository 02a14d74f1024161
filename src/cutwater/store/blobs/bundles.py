"""Bundles: the small files of a snapshot in one object, except those in an older bundle.

    <bundle>  = <header> <newline> <bytes of the small files, one after the other>
    <header>  = {"files":[{"offset":0,"path":"offsets/7","sha256":…,"size_bytes":…},…],"format":1}

A file that is not small is a separate blob (`"offset":null`). A file that an older bundle holds is
not sent again: `"bundle"` is that bundle's hash, and the offset counts there (format 2). A bundle
refers only to bundles that a kept cut names (rule F7), only while at least half of their bytes are
still needed, and only to a few of them. So a snapshot stays a few objects, and old bytes are
deleted in time.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from cutwater.errors import Corrupt, NewerFormat
from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.directories import is_below, is_name

FORMAT: Final = 2
"""The newest bundle format that is read; a bundle without references is written as format 1."""

OLDER_MAX: Final = 4
"""How many older bundles one bundle may refer to."""

_REMEMBERED: Final = 1024
_Count = Annotated[int, msgspec.Meta(ge=0)]


class BundledFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file of a tree.

    Attributes:
        offset: Where it begins after the header; None if it is a separate blob.
        bundle: The hash of the older bundle that holds it; None for this bundle.
    """

    path: str
    size_bytes: _Count
    sha256: str
    offset: _Count | None
    bundle: str | None = None


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=1)]
    files: tuple[BundledFile, ...]


class _Version(msgspec.Struct, frozen=True):
    """The part of a header that is the same in every format."""

    format: int


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_VERSIONS: Final = msgspec.json.Decoder(_Version)
_HEADERS: Final = msgspec.json.Decoder(Header)


def encode_header(files: Sequence[BundledFile]) -> bytes:
    version = 1 if all(file.bundle is None for file in files) else FORMAT
    return _ENCODER.encode(Header(version, tuple(files))) + b"\n"


def decode_header(ref: BlobRef, line: bytes) -> Header:
    """Read the header of a bundle whose hash has been checked."""
    try:
        version = _VERSIONS.decode(line).format
        if version > FORMAT:
            raise NewerFormat(ref.name, version, FORMAT)
        header = _HEADERS.decode(line)
    except ValueError as error:
        raise Corrupt(ref.name, f"it is no bundle: {error}") from error
    for file in header.files:
        if not is_below(file.path):
            raise Corrupt(ref.name, f"{file.path!r} is no path of a file in a bundle")
        for sha256 in (file.sha256, file.bundle):
            if sha256 is not None and not is_name(sha256):
                raise Corrupt(ref.name, f"{sha256!r} is no hash of {file.path}")
    return header


@dataclass(frozen=True, slots=True)
class Held:
    """The body of one stored bundle: offset and size of each file, by hash."""

    sha256: str
    files: Mapping[str, tuple[int, int]]

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.files.values())


def older_places(needed: Mapping[str, int], older: Iterable[Held]) -> dict[str, tuple[str, int]]:
    """Return bundle and offset of each file that stays in an older bundle, by the file's hash.

    `needed` has the size of each small file, by hash.
    """
    live = {
        bundle.sha256: (
            sum(size for name, (_, size) in bundle.files.items() if name in needed),
            bundle,
        )
        for bundle in older
    }
    worth = [
        (size, bundle)
        for size, bundle in live.values()
        if size > 0 and 2 * size >= bundle.size_bytes
    ]
    worth.sort(key=lambda pair: (-pair[0], pair[1].sha256))
    places: dict[str, tuple[str, int]] = {}
    for _, bundle in worth[:OLDER_MAX]:
        for name, (offset, _) in bundle.files.items():
            if name in needed and name not in places:
                places[name] = (bundle.sha256, offset)
    return places


class BundleMemory:
    """The contents of this process's newest bundles; may be used by several threads."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, held: Held) -> None:
        with self._lock:
            self._held[held.sha256] = held
            while len(self._held) > _REMEMBERED:
                self._held.popitem(last=False)

    def among(self, names: Collection[str]) -> tuple[Held, ...]:
        """Return the remembered bundles with one of these hashes."""
        with self._lock:
            return tuple(held for name, held in self._held.items() if name in names)

"""Blobs: a snapshot's files in the store, each named by its content, and how to get them back.

    <bundle>  = <header> <newline> <bytes of the small files, one after the other>
    <header>  = {"files":[{"offset":0,"path":"offsets/7","sha256":…,"size_bytes":…},…],"format":1}

A tree of files becomes one bundle, and one blob of its own for every file that is not small
(`"offset":null` in the header). The header is JSON in one line; offsets count from the byte after
it. The same tree always gives the same bundle, so a snapshot that has not changed, and every big
file that has not, is not sent again. Whether an object is there already is never asked: only what
the caller calls reusable, because a kept cut or this attempt names it, is skipped (rule F7). Every
byte is checked against the hash in its `BlobRef` before it is believed. Upholds I7.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import msgspec

from cutwater.errors import Corrupt, NewerFormat, NotFound
from cutwater.ids import Generation, PipelineId
from cutwater.protocol.cut import BlobRef
from cutwater.store.backend import Backend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records import digest

FORMAT: Final = 1
"""The format of bundles that is written, and the newest one that is read."""

BUNDLED_BYTES_MAX: Final = 1 << 20
"""A file with fewer bytes goes into the bundle; one with as many or more is a blob of its own."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a tree; without an offset, it is the blob that has its hash."""

    path: str
    size_bytes: _Count
    sha256: str
    offset: _Count | None


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=1)]
    files: tuple[_File, ...]


class _Version(msgspec.Struct, frozen=True):
    """All that may be asked of a header of any format."""

    format: int


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_VERSIONS: Final = msgspec.json.Decoder(_Version)
_HEADERS: Final = msgspec.json.Decoder(_Header)


class Blobs:
    """The blobs that one generation of a pipeline writes, and those of any that it reads.

    Holds nothing but names: may be used by any number of threads at once. Files that are being
    stored must not change meanwhile. What is written is named by its content, so every call may
    be repeated after any error. `OSError`s of local files are let through.
    """

    def __init__(self, backend: Backend, pipeline: PipelineId, generation: Generation) -> None:
        """Read anywhere in this store; write under this generation's names only."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)
        self._generation = generation

    # -- storing

    def store_tree(self, root: Path, reusable: Mapping[str, BlobRef]) -> tuple[BlobRef, ...]:
        """Store all files below a directory; directories without files are left out.

        Works with a temporary file beside `root`.

        Args:
            root: The directory.
            reusable: What need not be stored again, by hash (`protocol.retention.reusable`).

        Returns:
            What `fetch_tree` needs: the bundle, then the blobs of big files, sorted; nothing at
            all for a tree without files.

        Raises:
            Unavailable: If something was certainly not written.
            OutcomeUnknown: If something may or may not have been written, or may not last.
        """
        found = {one.relative_to(root).as_posix(): one for one in root.rglob("*") if one.is_file()}
        if not found:
            return ()
        files, big, offset = [], set(), 0
        for path, local_file in sorted(found.items()):
            size_bytes, sha256 = _measured(local_file)
            if size_bytes < BUNDLED_BYTES_MAX:
                files.append(_File(path, size_bytes, sha256, offset))
                offset += size_bytes
            else:
                files.append(_File(path, size_bytes, sha256, None))
                big.add(self._stored(local_file, size_bytes, sha256, reusable))
        with TemporaryDirectory(dir=root.parent) as beside:
            bundle = Path(beside) / "bundle"
            with bundle.open("wb") as file:
                file.write(_ENCODER.encode(_Header(FORMAT, tuple(files))) + b"\n")
                for one in files:
                    if one.offset is not None:
                        file.write(found[one.path].read_bytes())
            return (self.store_file(bundle, reusable), *sorted(big))

    def store_file(self, local_file: Path, reusable: Mapping[str, BlobRef]) -> BlobRef:
        """Store one file, unless it is reusable; return its blob.

        Raises:
            Unavailable: If it was certainly not written.
            OutcomeUnknown: If it may or may not have been written, or may not last.
        """
        return self._stored(local_file, *_measured(local_file), reusable)

    def _stored(
        self, local_file: Path, size_bytes: int, sha256: str, reusable: Mapping[str, BlobRef]
    ) -> BlobRef:
        known = reusable.get(sha256)
        if known is not None:
            return known
        path = self._paths.blob(self._generation, sha256)
        self._backend.put_file(path, local_file)
        return BlobRef(path, size_bytes, sha256)

    # -- fetching

    def fetch_tree(self, refs: Sequence[BlobRef], into: Path, below: str = "") -> None:
        """Write the files of a stored tree below a directory, which is made if it is not there.

        Replaces files of the same names, so that it may be repeated after an error, when a part
        of the tree may be there. Works with a temporary file beside `into`.

        Args:
            refs: What `store_tree` returned.
            into: The directory.
            below: Only files whose paths begin with this are fetched.

        Raises:
            Corrupt: If an object is missing or is not what was stored; it is named.
            NewerFormat: If the bundle was written by a newer Cutwater.
            Unavailable: If the store does not answer.
        """
        into.mkdir(parents=True, exist_ok=True)
        if not refs:
            return
        bundle_ref, big = refs[0], {ref.sha256: ref for ref in refs[1:]}
        with TemporaryDirectory(dir=into.parent) as beside:
            bundle = Path(beside) / "bundle"
            self.fetch_file(bundle_ref, bundle)
            with bundle.open("rb") as file:
                header = _header(bundle_ref, file.readline())
                start = file.tell()
                for one in header.files:
                    if not one.path.startswith(below):
                        continue
                    target = into / one.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if one.offset is not None:
                        file.seek(start + one.offset)
                        target.write_bytes(_checked(bundle_ref, one, file.read(one.size_bytes)))
                    elif one.sha256 in big:
                        self.fetch_file(big[one.sha256], target)
                    else:
                        raise Corrupt(bundle_ref.name, f"no blob was named for its file {one.path}")

    def fetch_file(self, ref: BlobRef, local_file: Path) -> None:
        """Write a blob's content to a local file, replacing what was there.

        After an error the file may hold a part, or what should not be believed.

        Raises:
            Corrupt: If the blob is missing or is not what was stored.
            Unavailable: If the store does not answer.
        """
        found = self._fetched(ref, local_file)
        if found is not None:
            raise Corrupt(ref.name, found)

    def problem(self, ref: BlobRef) -> str | None:
        """Say what is wrong with a blob, in words that follow its name; None if it is sound.

        Reads all of it, unless its size already tells.

        Raises:
            Unavailable: If the store does not answer.
        """
        try:
            size_bytes = self._backend.size(ObjectPath(ref.name))
        except NotFound:
            return _MISSING
        if size_bytes != ref.size_bytes:
            return _other_size(ref, size_bytes)
        with TemporaryDirectory() as directory:
            return self._fetched(ref, Path(directory) / "blob")

    def _fetched(self, ref: BlobRef, local_file: Path) -> str | None:
        """Fetch a blob and say what is wrong with it."""
        try:
            self._backend.read_to_file(ObjectPath(ref.name), local_file)
        except NotFound:
            return _MISSING
        size_bytes, sha256 = _measured(local_file)
        if size_bytes != ref.size_bytes:
            return _other_size(ref, size_bytes)
        if sha256 != ref.sha256:
            return f"its hash is {sha256}, and {ref.sha256} was stored"
        return None


_MISSING: Final = "it is missing, and a checkpoint names it"


def _other_size(ref: BlobRef, size_bytes: int) -> str:
    return f"it has {size_bytes} bytes, and {ref.size_bytes} were stored"


def _measured(local_file: Path) -> tuple[int, str]:
    """Return a file's size and hash, of the same bytes, without holding it in memory."""
    with local_file.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), sha256


def _header(ref: BlobRef, line: bytes) -> _Header:
    """Read the header of a bundle whose hash has been checked."""
    try:
        version = _VERSIONS.decode(line).format
        if version > FORMAT:
            raise NewerFormat(ref.name, version, FORMAT)
        header = _HEADERS.decode(line)
    except ValueError as error:
        raise Corrupt(ref.name, f"it is no bundle: {error}") from error
    for one in header.files:
        path = PurePosixPath(one.path)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise Corrupt(ref.name, f"{one.path!r} is no path of a file in a bundle")
    return header


def _checked(ref: BlobRef, file: _File, data: bytes) -> bytes:
    if len(data) != file.size_bytes or digest(data) != file.sha256:
        raise Corrupt(ref.name, f"its file {file.path} is not what was stored")
    return data

"""Blobs: a snapshot's files in the store, each named by its content, and how to get them back.

A tree of files becomes one bundle of its small files (`bundles`), and one blob of its own for every
file that is not small. The same tree always gives the same objects, so a snapshot that has not
changed, and every big file that has not, is not sent again. Whether an object is there already is
never asked: only what the caller calls reusable, because a kept cut or this attempt names it, is
skipped (rule F7). Every byte is checked against the hash in its `BlobRef` before it is believed.
Upholds I7.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, Final

from cutwater.errors import Corrupt, NotFound
from cutwater.ids import CheckpointId, Generation, PipelineId
from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.backend import Backend, each
from cutwater.store.blobs.bundles import (
    BundledFile,
    BundleMemory,
    Header,
    Held,
    decode_header,
    encode_header,
    older_places,
)
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.envelope import digest

if TYPE_CHECKING:
    from cutwater.store.blobs.local_cache import BlobCache

BUNDLED_BYTES_MAX: Final = 1 << 20
"""A file with fewer bytes goes into the bundle; one with as many or more is a blob of its own."""


class Blobs:
    """The blobs that one generation of a pipeline writes, and those of any that it reads.

    Holds nothing but names: may be used by any number of threads at once. Files that are being
    stored must not change meanwhile. What is written is named by its content, so every call may
    be repeated after any error. `OSError`s of local files are let through.
    """

    def __init__(
        self,
        backend: Backend,
        pipeline: PipelineId,
        generation: Generation,
        cache: "BlobCache | None" = None,
        attempt: CheckpointId | None = None,
    ) -> None:
        """Read anywhere in this store; write under the names of this generation and attempt only.

        What the cache holds is not fetched.
        """
        self._backend = backend
        self._paths = PipelinePaths(pipeline)
        self._generation = generation
        self._cache = cache
        self._attempt = attempt

    # -- storing

    def store_tree(
        self,
        root: Path,
        files: Collection[str],
        reusable: Mapping[str, BlobRef],
        memory: BundleMemory | None = None,
    ) -> tuple[BlobRef, ...]:
        """Store files of a directory. Works with a temporary file beside `root`.

        Args:
            root: The directory.
            files: Their paths below it, from whoever put them there: a directory that is listed
                again may show fewer.
            reusable: What need not be stored again, by hash (`protocol.retention.reusable`).
            memory: What earlier bundles hold, to leave out what a reusable one of them does;
                learns of this one. Without it every small file is packed.

        Returns:
            What `fetch_tree` needs: the bundle, then older bundles it refers to and the blobs of
            big files, sorted; nothing at all for no files.

        Raises:
            FileNotFoundError: If one of the files is not there.
            Unavailable: If something was certainly not written.
            OutcomeUnknown: If something may or may not have been written, or may not last.
        """
        found = {path: root / path for path in files}
        if not found:
            return ()
        measured = {path: size_and_hash(file) for path, file in sorted(found.items())}
        small = {sha: size for size, sha in measured.values() if size < BUNDLED_BYTES_MAX}
        older = older_places(small, memory.among(reusable)) if memory else {}
        bundled, packed, offset = [], {}, 0
        for path, (size_bytes, sha256) in measured.items():
            if sha256 not in small:
                bundled.append(BundledFile(path, size_bytes, sha256, None))
            elif sha256 in older:
                bundle, at = older[sha256]
                bundled.append(BundledFile(path, size_bytes, sha256, at, bundle))
            else:
                if sha256 not in packed:
                    packed[sha256] = (offset, size_bytes, found[path])
                    offset += size_bytes
                bundled.append(BundledFile(path, size_bytes, sha256, packed[sha256][0]))
        big = {sha: (found[path], size, sha) for path, (size, sha) in measured.items()}
        with TemporaryDirectory(dir=root.parent) as beside:
            target = Path(beside) / "bundle"
            with target.open("wb") as file:
                file.write(encode_header(bundled))
                for _, _, local_file in packed.values():
                    file.write(local_file.read_bytes())
            sent = [(target, *size_and_hash(target))]
            sent += [item for sha, item in big.items() if sha not in small]
            first, *others = each(lambda item: self._stored(*item, reusable), sent)
        if memory is not None:
            held = {sha: (at, size) for sha, (at, size, _) in packed.items()}
            memory.remember(Held(first.sha256, held))
        referred = {reusable[bundle] for bundle, _ in older.values()}
        return (first, *sorted({*others, *referred}))

    def store_files(
        self, local_files: Collection[Path], reusable: Mapping[str, BlobRef]
    ) -> tuple[BlobRef, ...]:
        """Store files, several at once; return their blobs in the same order.

        Raises:
            Unavailable: If one was certainly not written.
            OutcomeUnknown: If one may or may not have been written, or may not last.
        """
        return tuple(each(lambda local_file: self.store_file(local_file, reusable), local_files))

    def store_file(self, local_file: Path, reusable: Mapping[str, BlobRef]) -> BlobRef:
        """Store one file, unless it is reusable; return its blob.

        Raises:
            Unavailable: If it was certainly not written.
            OutcomeUnknown: If it may or may not have been written, or may not last.
        """
        return self._stored(local_file, *size_and_hash(local_file), reusable)

    def _stored(
        self, local_file: Path, size_bytes: int, sha256: str, reusable: Mapping[str, BlobRef]
    ) -> BlobRef:
        known = reusable.get(sha256)
        if known is not None:
            return known
        path = self._paths.blob(self._generation, sha256, self._attempt)
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
        first, others = refs[0], {ref.sha256: ref for ref in refs[1:]}
        whole: dict[Path, BlobRef] = {}
        with TemporaryDirectory(dir=into.parent) as beside, ExitStack() as opened:
            bundles: dict[str | None, _OpenBundle] = {
                None: opened.enter_context(self._bundle(first, Path(beside)))
            }
            for file in bundles[None].header.files:
                if not file.path.startswith(below):
                    continue
                target = into / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                wanted = file.sha256 if file.offset is None else file.bundle
                if wanted is not None and wanted not in others:
                    raise Corrupt(first.name, f"no blob was named for its file {file.path}")
                if file.offset is None:
                    whole[target] = others[file.sha256]
                    continue
                if self._cache is not None and self._cache.give(file.sha256, target):
                    continue
                if wanted not in bundles:
                    assert wanted is not None
                    bundle = self._bundle(others[wanted], Path(beside))
                    bundles[wanted] = opened.enter_context(bundle)
                target.write_bytes(bundles[wanted].read(file))
        self.fetch_files(whole)

    @contextmanager
    def _bundle(self, ref: BlobRef, directory: Path) -> Iterator["_OpenBundle"]:
        """Fetch a bundle into a directory and open it there."""
        local_file = directory / ref.sha256
        self.fetch_file(ref, local_file)
        with local_file.open("rb") as file:
            header = decode_header(ref, file.readline())
            yield _OpenBundle(ref, file, header, file.tell())

    def fetch_files(self, refs: Mapping[Path, BlobRef]) -> None:
        """Write blobs to local files, several at once; makes the directories they need.

        Raises:
            Corrupt: If a blob is missing or is not what was stored.
            Unavailable: If the store does not answer.
        """

        def fetch(local_file: Path) -> None:
            local_file.parent.mkdir(parents=True, exist_ok=True)
            self.fetch_file(refs[local_file], local_file)

        each(fetch, refs)

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

    def problems(self, refs: Collection[BlobRef]) -> dict[BlobRef, str]:
        """Say what is wrong with each blob that is not sound, looking at several at once.

        Raises:
            Unavailable: If the store does not answer.
        """
        found = zip(refs, each(self.problem, refs), strict=True)
        return {ref: problem for ref, problem in found if problem is not None}

    def problem(self, ref: BlobRef) -> str | None:
        """Say what is wrong with a blob, in words that follow its name; None if it is sound.

        Reads all of it, unless its size already tells.

        Raises:
            Unavailable: If the store does not answer.
        """
        problem = self.absence(ref)
        if problem is not None:
            return problem
        with TemporaryDirectory() as directory:
            return self._fetched(ref, Path(directory) / "blob")

    def absence(self, ref: BlobRef) -> str | None:
        """Say the same as far as it is known without reading the blob: there, and of its size.

        Raises:
            Unavailable: If the store does not answer.
        """
        try:
            size_bytes = self._backend.size(ObjectPath(ref.name))
        except NotFound:
            return _MISSING
        return None if size_bytes == ref.size_bytes else _other_size(ref, size_bytes)

    def _fetched(self, ref: BlobRef, local_file: Path) -> str | None:
        """Fetch a blob and say what is wrong with it."""
        if self._cache is not None and self._cache.give(ref.sha256, local_file):
            return None
        try:
            self._backend.read_to_file(ObjectPath(ref.name), local_file)
        except NotFound:
            return _MISSING
        size_bytes, sha256 = size_and_hash(local_file)
        if size_bytes != ref.size_bytes:
            return _other_size(ref, size_bytes)
        if sha256 != ref.sha256:
            return f"its hash is {sha256}, and {ref.sha256} was stored"
        return None


_MISSING: Final = "it is missing, and a checkpoint names it"


def _other_size(ref: BlobRef, size_bytes: int) -> str:
    return f"it has {size_bytes} bytes, and {ref.size_bytes} were stored"


def size_and_hash(local_file: Path) -> tuple[int, str]:
    """Return a file's size and hash, of the same bytes, without holding it in memory."""
    with local_file.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), sha256


@dataclass(frozen=True, slots=True)
class _OpenBundle:
    """A fetched bundle; its files begin at `start`."""

    ref: BlobRef
    file: BinaryIO
    header: Header
    start: int

    def read(self, file: BundledFile) -> bytes:
        """Return the bytes of a file that is said to be here."""
        assert file.offset is not None
        self.file.seek(self.start + file.offset)
        data = self.file.read(file.size_bytes)
        if len(data) != file.size_bytes or digest(data) != file.sha256:
            raise Corrupt(self.ref.name, f"its file {file.path} is not what was stored")
        return data

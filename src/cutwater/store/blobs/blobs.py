"""Blobs: stores a snapshot's files as objects named by their content, and fetches them.

A tree of files becomes one bundle of its small files (`bundles`), and a separate blob for every
other file. The same tree always gives the same objects, so an unchanged snapshot, and every
unchanged big file, is not sent again. The store is never queried for existing objects: only objects
that the caller calls reusable, because a kept cut or this attempt names them, are skipped (rule
F7). Every byte is checked against the hash in its `BlobRef` before it is trusted. Upholds I7.
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
    """The blobs that one generation of a pipeline writes, and the blobs of any generation it reads.

    A `Blobs` holds only names, so any number of threads may use it. Files must not change while
    they are stored. Objects are named by their content, so every call may be repeated after any
    error.

    The methods that store raise `Unavailable` if something was certainly not written, and
    `OutcomeUnknown` if something may or may not have been written, or may not last. The methods
    that fetch raise `Corrupt` for a blob that is missing or is not what was stored. All methods
    that read raise `Unavailable` if the store does not answer. An `OSError` of a local file passes
    through.
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
        self.backend = backend
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
            files: Their paths below the directory, from the code that wrote them: listing the
                directory again may show fewer.
            reusable: Objects that need not be stored again, by hash
                (`protocol.retention.reusable`).
            memory: The contents of earlier bundles: files in a reusable bundle are not packed
                again. The new bundle is added. Without a memory, every small file is packed.

        Returns:
            The arguments of `fetch_tree`: the bundle, then the older bundles it refers to and the
            blobs of big files, sorted; empty if there are no files.
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
            first, *others = each(self.backend, lambda item: self._store(*item, reusable), sent)
        if memory is not None:
            held = {sha: (at, size) for sha, (at, size, _) in packed.items()}
            memory.remember(Held(first.sha256, held))
        referred = {reusable[bundle] for bundle, _ in older.values()}
        return (first, *sorted({*others, *referred}))

    def store_files(
        self, local_files: Collection[Path], reusable: Mapping[str, BlobRef]
    ) -> tuple[BlobRef, ...]:
        """Store files, several at a time; return their blobs in the same order."""
        return tuple(
            each(
                self.backend, lambda local_file: self.store_file(local_file, reusable), local_files
            )
        )

    def store_file(self, local_file: Path, reusable: Mapping[str, BlobRef]) -> BlobRef:
        """Store one file, unless it is reusable."""
        return self._store(local_file, *size_and_hash(local_file), reusable)

    def _store(
        self, local_file: Path, size_bytes: int, sha256: str, reusable: Mapping[str, BlobRef]
    ) -> BlobRef:
        known = reusable.get(sha256)
        if known is not None:
            return known
        path = self._paths.blob(self._generation, sha256, self._attempt)
        self.backend.put_file(path, local_file)
        return BlobRef(path, size_bytes, sha256)

    # -- fetching

    def fetch_tree(self, refs: Sequence[BlobRef], into: Path, below: str = "") -> None:
        """Write the files of a stored tree below a directory, which is created if needed.

        Existing files of the same names are replaced, so the call may be repeated after an error
        that left a part of the tree. Works with a temporary file beside `into`. `refs` are what
        `store_tree` returned. Only files whose paths begin with `below` are fetched.
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
        local_file = directory / ref.sha256
        self.fetch_file(ref, local_file)
        with local_file.open("rb") as file:
            header = decode_header(ref, file.readline())
            yield _OpenBundle(ref, file, header, file.tell())

    def fetch_files(self, refs: Mapping[Path, BlobRef]) -> None:
        """Write blobs to local files, several at a time; create the directories they need."""

        def fetch(local_file: Path) -> None:
            local_file.parent.mkdir(parents=True, exist_ok=True)
            self.fetch_file(refs[local_file], local_file)

        each(self.backend, fetch, refs)

    def fetch_file(self, ref: BlobRef, local_file: Path) -> None:
        """Write a blob's content to a local file, replacing what was there.

        After an error the file may be incomplete or wrong.
        """
        found = self._fetch(ref, local_file)
        if found is not None:
            raise Corrupt(ref.name, found)

    def problems(self, refs: Collection[BlobRef]) -> dict[BlobRef, str]:
        """Describe the problem of each damaged or missing blob; check several at a time."""
        found = zip(refs, each(self.backend, self.problem, refs), strict=True)
        return {ref: problem for ref, problem in found if problem is not None}

    def problem(self, ref: BlobRef) -> str | None:
        """Describe the problem of a blob, in words that follow its name; None if it is intact.

        Reads the whole blob, unless its size is already wrong.
        """
        problem = self.absence(ref)
        if problem is not None:
            return problem
        with TemporaryDirectory() as directory:
            return self._fetch(ref, Path(directory) / "blob")

    def absence(self, ref: BlobRef) -> str | None:
        """Check as `problem` does, but only existence and size, without reading the blob."""
        try:
            size_bytes = self.backend.size(ObjectPath(ref.name))
        except NotFound:
            return _MISSING
        return None if size_bytes == ref.size_bytes else _other_size(ref, size_bytes)

    def _fetch(self, ref: BlobRef, local_file: Path) -> str | None:
        """Fetch a blob and describe its problem; None if it is intact."""
        if self._cache is not None and self._cache.give(ref.sha256, local_file):
            return None
        try:
            self.backend.read_to_file(ObjectPath(ref.name), local_file)
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
        assert file.offset is not None
        self.file.seek(self.start + file.offset)
        data = self.file.read(file.size_bytes)
        if len(data) != file.size_bytes or digest(data) != file.sha256:
            raise Corrupt(self.ref.name, f"its file {file.path} is not what was stored")
        return data

"""A local cache of blobs: the contents of a cut's objects, on this machine before steps are built.

Recovery checks every byte of a cut before sinks commit, and builds from the same bytes. So it gets
each content once, by its hash: from a file that a killed process left on this machine, if there is
one, otherwise from the store. A leftover file is not trusted: the file is linked, and the size and
hash of the link are checked; if they differ, the content comes from the store. An object whose
content was found on this machine is not read, but it must exist and have the right size: whether a
cut can be restored never depends on leftover files. Upholds I7 (docs/adr/0016).
"""

import os
import shutil
import stat
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from cutwater.errors import Corrupt
from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.backend import each
from cutwater.store.backends.directories import exists
from cutwater.store.blobs.blobs import Blobs, size_and_hash
from cutwater.store.blobs.bundles import decode_header


class LeftFiles:
    """Files left by earlier processes or generations; may be used by several threads.

    The files must not be written to any more, only deleted, because a link would change with them.
    Spark's files, which are written under another name first, and our own meet this condition.
    """

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        """Search below these directories; the search starts with the first request."""
        self._roots = tuple(roots)
        self._files: dict[int, list[Path]] | None = None
        self._hashes: dict[Path, str] = {}
        self._lock = threading.Lock()

    def take(self, size_bytes: int, sha256: str, target: Path) -> bool:
        """Link or copy a file that has this content; return whether there is one.

        The target does not exist yet.
        """
        for file in self._of_size(size_bytes):
            if self._hashes.get(file, sha256) != sha256:
                continue
            try:
                link_or_copy(file, target)
                # The link is checked, because it is what will be used: the file may change.
                found = size_and_hash(target)
            except OSError:
                target.unlink(missing_ok=True)
                continue
            self._hashes[file] = found[1]
            if found == (size_bytes, sha256):
                return True
            target.unlink()
        return False

    def _of_size(self, size_bytes: int) -> list[Path]:
        with self._lock:
            if self._files is None:
                self._files = {}
                seen = set()
                for file, found in self._walk():
                    # A file of another user may be changed after it was checked.
                    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                    # A pinned file has several names.
                    if is_ours and (found.st_dev, found.st_ino) not in seen:
                        seen.add((found.st_dev, found.st_ino))
                        self._files.setdefault(found.st_size, []).append(file)
            return self._files.get(size_bytes, [])

    def _walk(self) -> Iterator[tuple[Path, os.stat_result]]:
        for root in self._roots:
            # A directory that cannot be listed is skipped: its contents are fetched instead.
            for parent, _, names in os.walk(root, onerror=lambda _: None):
                for name in names:
                    file = Path(parent, name)
                    try:
                        yield file, file.lstat()
                    except OSError:
                        # A process that is about to end may just have deleted the file.
                        continue


class BlobCache:
    """Contents by hash, in a separate directory; may be used by several threads."""

    def __init__(self, directory: Path, left: LeftFiles) -> None:
        """Start empty; the directory does not exist yet, and is created with the first content."""
        self._directory = directory
        self._left = left
        self._lock = threading.Lock()
        self.linked_bytes = 0
        self.fetched_bytes = 0

    def problems(
        self, blobs: Blobs, trees: Collection[Sequence[BlobRef]], files: Collection[BlobRef]
    ) -> dict[BlobRef, str]:
        """Bring the contents of these objects here, several at a time; return their problems.

        Contents that are already here are skipped. An older bundle is skipped if all files that
        are needed from it were found on this machine. `trees` come from `store_tree`, `files` from
        `store_file`.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        trees = [tree for tree in trees if tree]
        found = self._take_all(blobs, {tree[0] for tree in trees}, {})
        parts: dict[str, set[tuple[int, str]]] = {}
        for first in {tree[0] for tree in trees} - found.keys():
            try:
                with (self._directory / first.sha256).open("rb") as bundle:
                    header = decode_header(first, bundle.readline())
            except Corrupt as error:
                found[first] = error.reason
                continue
            for file in header.files:
                if file.bundle is not None:
                    parts.setdefault(file.bundle, set()).add((file.size_bytes, file.sha256))
        others = {ref for tree in trees for ref in tree[1:]} | {*files}
        return found | self._take_all(blobs, others, parts)

    def _take_all(
        self,
        blobs: Blobs,
        refs: Collection[BlobRef],
        parts: dict[str, set[tuple[int, str]]],
    ) -> dict[BlobRef, str]:
        ordered = sorted(refs)

        def take(ref: BlobRef) -> str | None:
            needed = parts.get(ref.sha256, set())
            if self._find(ref.size_bytes, ref.sha256) or (
                needed and all(self._find(*content) for content in sorted(needed))
            ):
                return blobs.absence(ref)
            return self._fetch(blobs, ref)

        found = zip(ordered, each(blobs.backend, take, ordered), strict=True)
        return {ref: problem for ref, problem in found if problem is not None}

    def _find(self, size_bytes: int, sha256: str) -> bool:
        """Return whether the content is here, after searching the leftover files if necessary."""
        if exists(self._directory / sha256):
            return True
        unfinished = self._name_unfinished()
        if not self._left.take(size_bytes, sha256, unfinished):
            return False
        unfinished.replace(self._directory / sha256)
        with self._lock:
            self.linked_bytes += size_bytes
        return True

    def _fetch(self, blobs: Blobs, ref: BlobRef) -> str | None:
        unfinished = self._name_unfinished()
        try:
            blobs.fetch_file(ref, unfinished)
        except Corrupt as error:
            return error.reason
        unfinished.replace(self._directory / ref.sha256)
        with self._lock:
            self.fetched_bytes += ref.size_bytes
        return None

    def _name_unfinished(self) -> Path:
        return self._directory / f"{uuid.uuid4().hex}.unfinished"

    def give(self, sha256: str, local_file: Path) -> bool:
        """Put a content where it is needed, replacing an existing file; return whether it was here.

        The file must not be written to, because it may be a link.
        """
        content = self._directory / sha256
        if not exists(content):
            return False
        local_file.unlink(missing_ok=True)
        link_or_copy(content, local_file)
        return True


def link_or_copy(file: Path, target: Path) -> None:
    """Link a file under another name; copy it where the file system cannot link."""
    try:
        os.link(file, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(file, target)

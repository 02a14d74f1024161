"""A local cache of blobs: what a cut's objects hold, on this machine before anything is built.

Recovery checks every byte of a cut before sinks act, and builds from the same bytes. So it takes
each content once, by its hash: from a file that a killed process has left on this machine, if one
holds it, otherwise from the store. Nothing left behind is believed: the file is linked, and the
link is measured; if it is something else, the store has it. An object whose content was found here
is not read, but it must be there and have its size: what may be built from never depends on what
somebody left. Upholds I7 (docs/adr/0016).
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
    """Files that earlier processes or generations have left; may be used by several threads.

    They must not be written to any more, only deleted: a link would change with them. That is so
    with Spark's files, which are made under another name, and with ours.
    """

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        """Look below these directories, once something is asked for."""
        self._roots = tuple(roots)
        self._files: dict[int, list[Path]] | None = None
        self._hashes: dict[Path, str] = {}
        self._lock = threading.Lock()

    def take(self, size_bytes: int, sha256: str, target: Path) -> bool:
        """Link or copy a file that has this content; say whether there is one.

        Args:
            size_bytes: Its size.
            sha256: Its hash.
            target: A name that nothing has yet.
        """
        for file in self._of_size(size_bytes):
            if self._hashes.get(file, sha256) != sha256:
                continue
            try:
                link_or_copy(file, target)
                # Measured is what will be used, whatever becomes of the file meanwhile.
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
                for file, found in self._walked():
                    # What belongs to somebody else may be changed after it was measured.
                    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                    # A pinned file has several names.
                    if is_ours and (found.st_dev, found.st_ino) not in seen:
                        seen.add((found.st_dev, found.st_ino))
                        self._files.setdefault(found.st_size, []).append(file)
            return self._files.get(size_bytes, [])

    def _walked(self) -> Iterator[tuple[Path, os.stat_result]]:
        for root in self._roots:
            # A directory that cannot be listed is passed over: what it holds is fetched instead.
            for parent, _, names in os.walk(root, onerror=lambda _: None):
                for name in names:
                    file = Path(parent, name)
                    try:
                        yield file, file.lstat()
                    except OSError:
                        # A process that is about to end tidies up after itself.
                        continue


class BlobCache:
    """Contents by hash, in a directory of their own; may be used by several threads.

    Attributes:
        linked_bytes: What was found on this machine.
        fetched_bytes: What came from the store.
    """

    def __init__(self, directory: Path, left: LeftFiles) -> None:
        """Have nothing; the directory is made when something comes.

        Args:
            directory: A name that nothing has yet.
            left: Where to look first.
        """
        self._directory = directory
        self._left = left
        self._lock = threading.Lock()
        self.linked_bytes = 0
        self.fetched_bytes = 0

    def problems(
        self, blobs: Blobs, trees: Collection[Sequence[BlobRef]], files: Collection[BlobRef]
    ) -> dict[BlobRef, str]:
        """Take what these objects hold, several at once; say what is wrong with each.

        What is there already is not taken again. Where all that is needed of an older bundle was
        found here, the bundle itself is not taken.

        Args:
            blobs: Where they are.
            trees: What `store_tree` returned, each.
            files: What `store_file` returned.

        Raises:
            NewerFormat: If a bundle was written by a newer Cutwater.
            Unavailable: If the store does not answer.
            OSError: If it cannot be written here.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        trees = [tree for tree in trees if tree]
        found = self._taken(blobs, {tree[0] for tree in trees}, {})
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
        return found | self._taken(blobs, others, parts)

    def _taken(
        self,
        blobs: Blobs,
        refs: Collection[BlobRef],
        parts: dict[str, set[tuple[int, str]]],
    ) -> dict[BlobRef, str]:
        ordered = sorted(refs)

        def take(ref: BlobRef) -> str | None:
            needed = parts.get(ref.sha256, set())
            if self._found(ref.size_bytes, ref.sha256) or (
                needed and all(self._found(*content) for content in sorted(needed))
            ):
                return blobs.absence(ref)
            return self._fetched(blobs, ref)

        found = zip(ordered, each(take, ordered), strict=True)
        return {ref: problem for ref, problem in found if problem is not None}

    def _found(self, size_bytes: int, sha256: str) -> bool:
        """Say whether the content is here, or was found on this machine now."""
        if exists(self._directory / sha256):
            return True
        unfinished = self._unfinished()
        if not self._left.take(size_bytes, sha256, unfinished):
            return False
        unfinished.replace(self._directory / sha256)
        with self._lock:
            self.linked_bytes += size_bytes
        return True

    def _fetched(self, blobs: Blobs, ref: BlobRef) -> str | None:
        unfinished = self._unfinished()
        try:
            blobs.fetch_file(ref, unfinished)
        except Corrupt as error:
            return error.reason
        unfinished.replace(self._directory / ref.sha256)
        with self._lock:
            self.fetched_bytes += ref.size_bytes
        return None

    def _unfinished(self) -> Path:
        return self._directory / f"{uuid.uuid4().hex}.unfinished"

    def give(self, sha256: str, local_file: Path) -> bool:
        """Put a content where it is needed, replacing what is there; say whether it was here.

        The file must not be written to: it may be a link.
        """
        content = self._directory / sha256
        if not exists(content):
            return False
        local_file.unlink(missing_ok=True)
        link_or_copy(content, local_file)
        return True


def link_or_copy(file: Path, target: Path) -> None:
    """Give a file another name; or its content, where the file system has no link to offer."""
    try:
        os.link(file, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(file, target)

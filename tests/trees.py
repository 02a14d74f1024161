"""Directories of files that are put into a store as they are found."""

from collections.abc import Mapping
from pathlib import Path

from cutwater.protocol.cut import BlobRef
from cutwater.store.backends.directories import files_below
from cutwater.store.blobs.blobs import Blobs
from cutwater.store.blobs.bundles import BundleMemory


def stored_tree(
    blobs: Blobs, root: Path, reusable: Mapping[str, BlobRef], memory: BundleMemory | None = None
) -> tuple[BlobRef, ...]:
    """Store all files below a directory."""
    files = [file.relative_to(root).as_posix() for file in files_below(root)]
    return blobs.store_tree(root, files, reusable, memory)

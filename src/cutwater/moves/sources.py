"""Whether a source still has what follows a cut: asked of files, the source that forgets by hand.

Spark's file source keeps a log of the files it has read, which is part of a snapshot. What the
newer cut has read and the older one has not must still be there, or going back would lose it. The
sources of this package are computed and forget nothing. Any other source is asked by nobody until
the run starts; a preview says so.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote, urlsplit

from cutwater.ids import StepId
from cutwater.protocol.cut import Cut, StepSnapshot
from cutwater.store.opened import OpenStore

_COMPUTED: Final = frozenset({"sequence", "nexmark"})
"""The first words of what our own sources call their offsets."""


def is_checked(offset: str | None) -> bool:
    """Say whether somebody has asked, or need not ask, if a source has what follows an offset."""
    if offset is None:
        return False
    found = _decoded(offset)
    return "logOffset" in found or any(one.partition(" ")[0] in _COMPUTED for one in found)


def forgotten(store: OpenStore, head: Cut | None, target: Cut) -> Mapping[str, str]:
    """Find sources that no longer have what follows a cut, with the reason.

    Args:
        store: The pipeline in its store.
        head: The cut the pipeline stands on: what it has read must be there to be read again.
        target: The cut to go back to.

    Raises:
        StoreError: If a snapshot cannot be read.
    """
    found: dict[str, str] = {}
    for step, snapshot in {} if head is None else head.snapshots.items():
        for stream, offset in snapshot.offsets.items():
            if "logOffset" not in _decoded(offset):
                continue
            since = _read_through(target, step, stream)
            missing = [
                one for one in _files_after(store, snapshot, stream, since) if not one.exists()
            ]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                found[f"{step}/{stream}"] = f"{missing[0]}{more} was read since and is gone"
    return found


def _read_through(target: Cut, step: StepId, stream: str) -> int:
    """Return the last entry of a file source's log that a cut covers; -1 for none."""
    snapshot = target.snapshots.get(step)
    offset = None if snapshot is None else snapshot.offsets.get(stream)
    return -1 if offset is None else int(_decoded(offset).get("logOffset", -1))


def _files_after(
    store: OpenStore, snapshot: StepSnapshot, stream: str, since: int
) -> Iterator[Path]:
    """Give the files on this machine that a file source's log names after an entry."""
    number = stream.partition(":")[0]
    with TemporaryDirectory() as directory:
        into = Path(directory) / "query"
        below = f"sources/{number}/"
        store.blobs(snapshot.generation).fetch_tree(snapshot.state, into, below)
        for log in sorted(into.glob(f"{below}*")):
            # The first line is the version of the format.
            for line in log.read_text(encoding="utf-8").splitlines()[1:]:
                entry = _decoded(line)
                address = urlsplit(str(entry.get("path", "")))
                if address.scheme == "file" and int(entry.get("batchId", -1)) > since:
                    yield Path(unquote(address.path))


def _decoded(text: str) -> Mapping[str, int | str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

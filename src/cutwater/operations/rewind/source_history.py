"""Whether a source still has what follows a cut: asked of files, the source that forgets by hand.

Spark's file source keeps a log of the files it has read, which is part of a snapshot. What the
newer cut has read and the older one has not must still be there, or going back would lose it. The
sources of this package are computed and forget nothing. Any other source is asked by nobody until
the run starts; a preview says so.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from cutwater.errors import Corrupt, NotFound
from cutwater.ids import StepId
from cutwater.protocol.cut import Cut, StepSnapshot
from cutwater.store.backends.directories import exists, list_directory
from cutwater.store.pipeline_store import PipelineStore

_COMPUTED: Final = frozenset({"sequence", "nexmark"})
"""The first words of what our own sources call their offsets."""


def is_checked(offset: str | None) -> bool:
    """Say whether a source has what follows an offset: it is computed, or `past_of` asks it."""
    if offset is None:
        return False
    found = _decoded(offset)
    return "logOffset" in found or any(one.partition(" ")[0] in _COMPUTED for one in found)


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of what sources have behind a cut, by step and stream.

    Attributes:
        forgotten: Those that no longer have what was read since, with the reason.
        unasked: Those that read files which could not be looked for: they are not on this
            machine, or nobody can say which they are.
    """

    forgotten: Mapping[str, str] = field(default_factory=dict)
    unasked: frozenset[str] = frozenset()


def past_of(store: PipelineStore, head: Cut | None, target: Cut) -> Past:
    """Find out whether sources still have what follows a cut.

    Args:
        store: The pipeline in its store.
        head: The cut the pipeline stands on: what it has read must be there to be read again.
        target: The cut to go back to, or to begin from.

    Raises:
        StoreError: If the store does not answer.
    """
    found: dict[str, str] = {}
    unasked = set()
    for step, snapshot in {} if head is None else head.snapshots.items():
        for stream, offset in snapshot.offsets.items():
            if "logOffset" not in _decoded(offset):
                continue
            name = f"{step}/{stream}"
            since = _read_through(target, step, stream)
            number = _log_number(head, step, stream)
            try:
                read = list(_read_after(store, snapshot, number, since))
            except (Corrupt, NotFound):
                # The head is damaged, which is why somebody leaves it; what it read is not known.
                unasked.add(name)
                continue
            files = [Path(unquote(one.path)) for one in read if one.scheme == "file"]
            if len(files) < len(read):
                unasked.add(name)
            missing = [one for one in files if not exists(one)]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                found[name] = f"{missing[0]}{more} was read since and is gone"
    return Past(found, frozenset(unasked))


def _read_through(target: Cut, step: StepId, stream: str) -> int:
    """Return the last entry of a file source's log that a cut covers; -1 for none."""
    own = target.snapshots.get(step)
    # A source keeps its name when it moves to another line or step.
    name = stream.partition(":")[2]
    for snapshot in (*(() if own is None else (own,)), *target.snapshots.values()):
        for one, offset in snapshot.offsets.items():
            if one.partition(":")[2] == name:
                return int(_decoded(offset).get("logOffset", -1))
    return -1


def _log_number(head: Cut | None, step: StepId, stream: str) -> int:
    """Return under which number a source of Spark's keeps its log beside the query.

    Spark counts its own sources only; a manifest of the first versions does not say which.
    """
    line = int(stream.partition(":")[0])
    identity = None if head is None else head.identities.get(step)
    if identity is None or line >= len(identity.inputs):
        return line
    found = identity.inputs[line].log
    return line if found is None else found


def _read_after(
    store: PipelineStore, snapshot: StepSnapshot, number: int, since: int
) -> Iterator[SplitResult]:
    """Give the addresses of the files that a file source's log names after an entry."""
    with TemporaryDirectory() as directory:
        into = Path(directory) / "query"
        below = f"sources/{number}/"
        store.blobs(snapshot.generation).fetch_tree(snapshot.state, into, below)
        for log in list_directory(into / below):
            # The first line is the version of the format.
            for line in log.read_text(encoding="utf-8").splitlines()[1:]:
                entry = _decoded(line)
                if int(entry.get("batchId", -1)) > since:
                    yield urlsplit(str(entry.get("path", "")))


def _decoded(text: str) -> Mapping[str, int | str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

"""Checks whether a source still has the input after a cut: sources of files and of Kafka.

Spark's file source keeps a log of the files it has read, which is part of a snapshot. Files that
the newer cut has read and the older cut has not must still exist, or a rewind would lose their
rows. A broker is asked which records it has (`kafka_history`). The sources of this package are
computed and lose nothing. Other sources are not checked until the run starts; a preview says so.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from cutwater.errors import Corrupt, NotFound
from cutwater.ids import StepId
from cutwater.kafka.librdkafka import OpenBroker, open_broker
from cutwater.operations.rewind.kafka_history import kafka_past
from cutwater.protocol.cut import Cut, StepSnapshot
from cutwater.protocol.messages import REFERENCE
from cutwater.store.backends.directories import exists, list_directory, status
from cutwater.store.pipeline_store import PipelineStore

_COMPUTED: Final = frozenset({"sequence", "nexmark"})
"""The first words of the offsets of this package's sources."""


def is_checked(offset: str | None) -> bool:
    """Return whether a source is computed, or checked by `past_of`."""
    if offset is None:
        return False
    found = _decode(offset)
    return "logOffset" in found or any(key.partition(" ")[0] in _COMPUTED for key in found)


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of the input that sources have after a cut, by step and stream.

    Attributes:
        forgotten: Streams that no longer have what was read since, with the reason.
        unasked: Streams that could not be checked, each with the reason: their files are not on
            this machine or are not known, or their broker does not answer.
        replayed: For each stream of Kafka that was checked: how many offsets would be read again.
    """

    forgotten: Mapping[str, str] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)
    replayed: Mapping[str, int] = field(default_factory=dict)


def past_of(
    store: PipelineStore, head: Cut | None, target: Cut, broker: OpenBroker = open_broker
) -> Past:
    """Check whether sources still have the input after a cut: all that the current one has read."""
    files, kafka = _files_of(store, head, target), kafka_past(head, target, broker)
    return Past(
        {**files.forgotten, **kafka.lost}, {**files.unasked, **kafka.unasked}, kafka.replayed
    )


def find_changed_files(store: PipelineStore, cut: Cut) -> Iterator[tuple[str, str]]:
    """Find files that rows in flight refer to, and which are gone or have changed; with the reason.

    Files that are not on this machine are not looked for: a run does that when it starts.
    """
    blobs = store.blobs(cut.generation)
    events = (
        recorded
        for snapshot in cut.snapshots.values()
        for part in snapshot.in_flight
        for recorded in part.events
    )
    with TemporaryDirectory() as directory:
        local = Path(directory) / "range"
        for recorded in events:
            if not any(Path(name).name == REFERENCE for name in recorded.event.files):
                continue
            blobs.fetch_file(recorded.blobs[0], local)
            for file in json.loads(local.read_bytes()).get("files", ()):
                problem = _changed(file)
                if problem is not None:
                    yield f"rows in flight: {file['path']}", problem


def _changed(file: Mapping[str, Any]) -> str | None:
    # As Hadoop writes a path: nothing in it is quoted.
    scheme, _, place = str(file["path"]).partition(":")
    if scheme != "file":
        return None
    now = status(Path(f"/{place.lstrip('/')}"))
    if now is None:
        return "the file is gone"
    facts = (now.st_size, now.st_mtime_ns // 1_000_000)
    is_same = facts == (file["size_bytes"], file["modified_ms"])
    return None if is_same else "the file has changed since"


def _files_of(store: PipelineStore, head: Cut | None, target: Cut) -> Past:
    found: dict[str, str] = {}
    unasked: dict[str, str] = {}
    for step, snapshot in {} if head is None else head.snapshots.items():
        for stream, offset in snapshot.offsets.items():
            if "logOffset" not in _decode(offset):
                continue
            name = f"{step}/{stream}"
            since = _read_through(target, step, stream)
            number = _log_number(head, step, stream)
            try:
                read = list(_read_after(store, snapshot, number, since))
            except (Corrupt, NotFound):
                # The head is damaged, a usual reason for a rewind; what it has read is not known.
                unasked[name] = "the current checkpoint is damaged"
                continue
            files = [Path(unquote(address.path)) for address in read if address.scheme == "file"]
            if len(files) < len(read):
                unasked[name] = "its files are not on this machine"
            missing = [file for file in files if not exists(file)]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                found[name] = f"{missing[0]}{more} was read since and is gone"
    return Past(found, unasked)


def _read_through(target: Cut, step: StepId, stream: str) -> int:
    """Return the last entry of a file source's log that a cut covers; -1 for none."""
    own = target.snapshots.get(step)
    # A source keeps its name when it moves to another line or step.
    name = stream.partition(":")[2]
    for snapshot in (*(() if own is None else (own,)), *target.snapshots.values()):
        for other_stream, offset in snapshot.offsets.items():
            if other_stream.partition(":")[2] == name:
                return int(_decode(offset).get("logOffset", -1))
    return -1


def _log_number(head: Cut | None, step: StepId, stream: str) -> int:
    """Return the number under which a Spark source keeps its log in the query's directory.

    Spark counts only its own sources; manifests of the first versions do not record the number.
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
    """Yield the addresses of the files that a file source's log names after an entry."""
    with TemporaryDirectory() as directory:
        into = Path(directory) / "query"
        below = f"sources/{number}/"
        store.blobs(snapshot.generation).fetch_tree(snapshot.state, into, below)
        for log in list_directory(into / below):
            # The first line is the version of the format.
            for line in log.read_text(encoding="utf-8").splitlines()[1:]:
                entry = _decode(line)
                if int(entry.get("batchId", -1)) > since:
                    yield urlsplit(str(entry.get("path", "")))


def _decode(text: str) -> Mapping[str, int | str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

"""Ejects a pipeline's checkpoint as plain checkpoint directories, one for each query.

A step that reads outside sources gives a directory from which a plain query resumes exactly: the
same state, the same offsets, the next batch. A step that reads channels has no source that a plain
query could read; its directory has the state, and no offset for the channel. The pipeline in the
store is only read. A directory appears complete or not at all.
"""

import os
import uuid
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cutwater.errors import ConfigError, Corrupt, RecoveryError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, StepId
from cutwater.protocol.cut import Cut, StepSnapshot
from cutwater.protocol.decisions import Decision
from cutwater.protocol.recovery import state_damages
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir import offsets as query_streams
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind
from cutwater.spark.engine import input_watermarks
from cutwater.store.backends.directories import (
    exists,
    is_directory,
    list_directory,
    try_to_remove_tree,
)
from cutwater.store.pipeline_store import PipelineStore

README: Final = "README.txt"
LISTING: Final = "eject.json"


class Ending(Enum):
    """What a plain query can do with what was written of a step."""

    EXACT = "goes on exactly"
    """It reads outside sources: a plain query resumes from its directory."""
    STATE_ONLY = "state only"
    """It reads channels: the directory has its state, but its input must come from elsewhere."""
    NOTHING = "nothing to write"
    """It keeps no state, or has not run yet: a plain query starts in an empty directory."""


class Ejected(msgspec.Struct, frozen=True):
    """What was written of one step.

    Attributes:
        directory: The checkpoint directory, below the requested one; empty for none.
        batch: The last batch that is part of the checkpoint; None if there is none.
        streams: What a plain query must read, in this order; without offset where there is none.
        reads: The channels that the step reads, each named after the step that writes it.
        explanation: What to do with it, in words.
    """

    step: StepId
    ending: Ending
    directory: str
    batch: BatchId | None
    streams: tuple[Stream, ...]
    reads: tuple[str, ...]
    explanation: str


@dataclass(frozen=True, slots=True)
class Ejection:
    """What was written of a checkpoint, and where.

    `newer` is the pipeline's current checkpoint, if it is a later one; otherwise None.
    """

    pipeline: str
    decision: Decision
    directory: Path
    steps: tuple[Ejected, ...]
    newer: CheckpointId | None

    @property
    def warning(self) -> str:
        """Which rows are duplicated if a plain query writes to a sink's target; empty for none."""
        if self.newer is None:
            return ""
        return (
            f"The pipeline has gone on to checkpoint {self.newer}: a plain query puts the rows "
            f"since checkpoint {self.decision.checkpoint_id} out again."
        )


def eject(pipeline: str, store: PipelineStore, decision: Decision, to: Path) -> Ejection:
    """Write a checkpoint's queries as plain checkpoint directories.

    The directory is created; it may exist if it is empty.

    Raises:
        ConfigError: If the checkpoint or the directory cannot be used; nothing was written.
        Corrupt: If the checkpoint is damaged; the object is named.
    """
    target = to.absolute()
    _check_target(target)
    cut = store.manifests.read(decision.checkpoint_id, decision.manifest_sha256)
    _check_cut(cut, decision, store)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    work.mkdir()
    try:
        blobs = store.blobs(cut.generation)
        found = []
        for _, snapshot in sorted(cut.snapshots.items()):
            directory = work / snapshot.step
            if snapshot.batch != NO_BATCH and snapshot.state:
                blobs.fetch_tree(snapshot.state, directory)
            found.append(_eject_step(snapshot, directory, target / snapshot.step))
        head = store.log.read().head
        newer = head.checkpoint_id if head is not None and head != decision else None
        ejection = Ejection(pipeline, decision, target, tuple(found), newer)
        (work / LISTING).write_text(_render_listing(ejection), encoding="utf-8")
        (work / README).write_text(_render_readme(ejection), encoding="utf-8")
        try:
            # Replaces an empty directory, and nothing else.
            os.rename(work, target)  # noqa: PTH104 - Path.rename has no such promise
        except OSError as error:
            raise ConfigError("--to", f"{to} is not empty any more: {error.strerror}") from error
    except BaseException as error:
        try_to_remove_tree(work)
        number = decision.checkpoint_id
        if isinstance(error, Corrupt) and number not in store.manifests.ids():
            # Retention deletes a manifest before its objects: they are deleted, not damaged.
            reason = f"checkpoint {number} is no longer kept, and was deleted while it was read"
            raise ConfigError("--checkpoint", reason) from error
        raise
    return ejection


def _check_target(target: Path) -> None:
    if exists(target) and (not is_directory(target) or list_directory(target)):
        raise ConfigError("--to", f"{target} is not an empty directory; name a new one")


def _check_cut(cut: Cut, decision: Decision, store: PipelineStore) -> None:
    name = f"checkpoint {cut.checkpoint_id}"
    for damage in state_damages(cut):
        raise ConfigError(
            "--checkpoint", f"{name} is damaged: {damage.name}: {damage.problem}; eject another one"
        )
    if not cut.is_aligned or any(cut.carried.values()):
        what = "rows in flight between its steps" if not cut.is_aligned else "rows not committed"
        raise ConfigError(
            "--checkpoint",
            f"{name} has {what}, for which a plain directory has no place; take a savepoint, "
            "which never has any, and eject that",
        )
    undone = any(
        later.origin is not None and later.origin < decision.slot < later.slot
        for later in store.log.read().decisions
    )
    if undone:
        raise ConfigError(
            "--checkpoint",
            f"a rewind has restored the tables to before {name}, and a plain query would resume "
            "without the rows in between; eject the current checkpoint of the pipeline, or one "
            "before the rewind's",
        )
    if decision.commit_point and decision.slot not in store.commits.slots():
        raise ConfigError(
            "--checkpoint",
            f"the sinks have not committed {name} yet, and a plain query would resume after its "
            "rows; run the pipeline once, which commits it first",
        )


def _eject_step(snapshot: StepSnapshot, directory: Path, home: Path) -> Ejected:
    """Turn fetched files into a plain query's directory, and describe its use."""
    channels = tuple(sorted({str(source.channel) for source in snapshot.positions}))
    if not exists(directory):
        why = "It keeps no state and no directory of its own."
        if snapshot.batch == NO_BATCH:
            why = "It had not run a batch yet: a plain query starts in a new directory."
        if channels:
            why += f" It reads {_list_channels(channels)}, which a plain query cannot read."
        return Ejected(snapshot.step, Ending.NOTHING, "", None, (), channels, why)
    streams = query_streams.read_streams(directory)
    for batch in query_log.batches(directory, query_log.OFFSETS):
        lines = query_streams.for_plain(query_log.read_batch(directory, batch).offsets, streams)
        if lines is None:
            raise RecoveryError(f"batch {batch} of {snapshot.step} has offsets of other streams.")
        query_log.replace_offsets(directory, batch, lines)
    (directory / query_streams.STREAMS_FILE).unlink()
    (directory / input_watermarks.FILE).unlink(missing_ok=True)
    # The pipeline may still run, even in the same Spark: a query of the same id would stop it.
    query_log.mint_query_id(directory)
    query_files.settle(directory, home)
    plain = tuple(stream for stream in streams if stream.kind is not StreamKind.PULSE)
    if channels:
        names = _list_channels(channels)
        why = (
            f"It read {names}, filled by the step of the same name. The directory has "
            "all of its state, and no offset where a channel was: a plain query whose plan is the "
            "same but for the source read there resumes with the state, and reads that source "
            f"from its beginning. Give it one that begins after batch {snapshot.batch}."
        )
        ending = Ending.STATE_ONLY
    else:
        why = (
            f"A plain query with the same plan resumes at batch {snapshot.batch + 1}: same "
            "sources in the same order, same stateful operators, "
            f'.option("checkpointLocation", "{home}").'
        )
        ending = Ending.EXACT
        if any(stream.kind is StreamKind.OWN for stream in streams):
            why += " It reads a source of cutwater.sources, which must stay the same."
    return Ejected(snapshot.step, ending, snapshot.step, snapshot.batch, plain, channels, why)


def _list_channels(channels: tuple[str, ...]) -> str:
    return f"channel{'s' if len(channels) > 1 else ''} {', '.join(channels)}"


def _render_listing(ejection: Ejection) -> str:
    return msgspec.json.format(msgspec.json.encode(as_json(ejection)), indent=2).decode() + "\n"


def as_json(ejection: Ejection) -> dict[str, object]:
    """Return the ejection as JSON values; `eject.json` holds the same."""
    return {
        "pipeline": ejection.pipeline,
        "checkpoint": ejection.decision.checkpoint_id,
        "directory": str(ejection.directory),
        "newer_checkpoint": ejection.newer,
        "steps": msgspec.to_builtins(ejection.steps),
    }


def _render_readme(ejection: Ejection) -> str:
    lines = [
        f"Checkpoint {ejection.decision.checkpoint_id} of pipeline {ejection.pipeline}, as "
        "checkpoint directories of plain Spark streaming queries.",
        "Cutwater is not needed to resume from them. Tables that sinks have written are complete",
        "up to this checkpoint; what a plain query writes comes after it.",
        *([ejection.warning] if ejection.warning else []),
        "",
    ]
    for step in ejection.steps:
        lines += [f"{step.step}: {step.ending.value}", f"  {step.explanation}"]
        for at, stream in enumerate(step.streams):
            is_channel = stream.kind is StreamKind.CHANNEL
            what = "channel, no offset" if is_channel else stream.description
            lines.append(f"  source {at}: {stream.name} ({what})")
        lines.append("")
    return "\n".join(lines)

"""A query's logs: which batches it has begun and committed, where, and with which state.

    metadata        {"id":<uuid>}                  the query's own id
    offsets/<b>     v1 / {"batchWatermarkMs":…} / one line per source, `-` for none
    commits/<b>     v2 / {"nextBatchWatermarkMs":…,"stateUniqueIds":{<operator>:[[<uuid>,…],…]}}

Spark writes `offsets/<b>` before it runs batch b and `commits/<b>` after, each whole or not at
all, and never changes one. Batch b leaves version b+1 of every state store behind; the ids in
`commits/<b>` say which files of that version count, per operator, partition and store. Only what
this module and `query_files` know of the directory may be known anywhere (docs/glossary.md:
snapshot).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import msgspec

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId

METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"

_NO_OFFSET: Final = "-"

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class BatchLog:
    """What Spark wrote down before it ran a batch.

    Attributes:
        offsets: Where each source ends in this batch, in the order of the plan, as the source's
            own JSON; None for a source that has not delivered anything yet.
        watermark_ms: The event-time watermark that the batch ran with; 0 for none.
    """

    offsets: tuple[str | None, ...]
    watermark_ms: int


class _OffsetsForm(msgspec.Struct, frozen=True):
    batch_watermark_ms: int = msgspec.field(name="batchWatermarkMs")


class _CommitForm(msgspec.Struct, frozen=True):
    next_batch_watermark_ms: int = msgspec.field(name="nextBatchWatermarkMs")
    state_unique_ids: dict[str, tuple[tuple[str, ...], ...]] | None = msgspec.field(
        name="stateUniqueIds", default=None
    )


_OFFSETS: Final = msgspec.json.Decoder(_OffsetsForm)
_COMMITS: Final = msgspec.json.Decoder(_CommitForm)


def is_committed(checkpoint: Path, batch: BatchId) -> bool:
    """Say whether Spark has committed a batch; costs one question to the file system."""
    return (checkpoint / COMMITS / str(batch)).exists()


def read_batch(checkpoint: Path, batch: BatchId) -> BatchLog:
    """Read what Spark wrote down before it ran a batch; it may be running still.

    Raises:
        RecoveryError: If there is no such batch, or its entry cannot be understood.
    """
    file = checkpoint / OFFSETS / str(batch)
    # Version 2 has a name before each offset: it comes with named sources, which are off.
    watermark, *offsets = _entry(file, "v1")
    form = _decoded(_OFFSETS, file, watermark)
    return BatchLog(
        tuple(None if line == _NO_OFFSET else line for line in offsets), form.batch_watermark_ms
    )


def next_watermark_ms(checkpoint: Path, batch: BatchId) -> int:
    """Return the watermark that the batch after a committed one runs with; 0 for none.

    Raises:
        RecoveryError: If the batch is not committed, or its entry cannot be understood.
    """
    return _commit(checkpoint, batch).next_batch_watermark_ms


def state_ids(checkpoint: Path, batch: BatchId) -> Mapping[str, tuple[tuple[str, ...], ...]] | None:
    """Return the ids of the state that a committed batch left behind.

    Returns:
        For each operator, the ids of the stores of each partition, in no known order; None if
        the state's files carry no ids (checkpoint format 1).

    Raises:
        RecoveryError: If the batch is not committed, or its entry cannot be understood.
    """
    return _commit(checkpoint, batch).state_unique_ids


def mint_query_id(checkpoint: Path) -> str:
    """Give the query of a checkpoint directory a new id, as a fork needs it; return the id.

    Spark stops a running query when one with the same id starts in the same application. No
    query may be running in the directory.
    """
    query_id = str(uuid4())
    replace_text(checkpoint / METADATA, msgspec.json.encode({"id": query_id}).decode())
    return query_id


def replace_text(file: Path, text: str) -> None:
    """Give a file of a checkpoint directory other content.

    Links to the old file, and so pins, keep the old content. Hadoop's checksum goes with it.
    """
    new = file.with_name(f".{file.name}.{uuid4()}.tmp")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _commit(checkpoint: Path, batch: BatchId) -> _CommitForm:
    file = checkpoint / COMMITS / str(batch)
    (line,) = _entry(file, "v1", "v2", "v3")[:1]
    return _decoded(_COMMITS, file, line)


def _entry(file: Path, *versions: str) -> list[str]:
    """Return the lines of a log's entry after its version; at least one."""
    try:
        version, *lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise RecoveryError(f"{file} is not there.") from error
    if version not in versions or not lines:
        raise RecoveryError(
            f"{file} begins with {version!r} and has {len(lines)} more lines; "
            f"expected {' or '.join(versions)} and at least one."
        )
    return lines


def _decoded(decoder: msgspec.json.Decoder[Form], file: Path, line: str) -> Form:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise RecoveryError(f"{file} makes no sense: {error}.") from error

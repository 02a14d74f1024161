"""A query's logs: which batches it has started and committed, where, and with which state.

    metadata        {"id":<uuid>}                  the query's own id
    offsets/<b>     v1 / {"batchWatermarkMs":…} / one line per source, `-` for none
    commits/<b>     v2 / {"nextBatchWatermarkMs":…,"stateUniqueIds":{<operator>:[[<uuid>,…],…]}}
    <v>_<uuid>.changelog   of a state store: v3 / [{"version":…,"checkpointUniqueId":…},…] / changes

Spark writes `offsets/<b>` before it runs batch b and `commits/<b>` after, each whole or not at
all, and never changes one. After batch b every state store is at version b+1. The ids in
`commits/<b>` select the files of that version, per operator, partition and store; each changelog
lists the versions before its own. `files` locates all of these. An entry that is missing or cannot
be understood is a RecoveryError.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
import pyarrow

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId
from cutwater.spark.checkpoint_dir.listing import names
from cutwater.store.backends.directories import exists

METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"

_NO_OFFSET: Final = "-"

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class BatchLog:
    """What Spark recorded before it ran a batch.

    Attributes:
        offsets: Where each source ends in this batch, in the order of the plan, as the source's
            own JSON; None for a source that has not delivered anything yet.
        watermark_ms: The event-time watermark that the batch ran with; 0 for none.
        settings: Spark's settings that are fixed for the life of the query.
    """

    offsets: tuple[str | None, ...]
    watermark_ms: int
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)


class _OffsetsForm(msgspec.Struct, frozen=True):
    batch_watermark_ms: int = msgspec.field(name="batchWatermarkMs")
    conf: dict[str, str] = {}


class _CommitForm(msgspec.Struct, frozen=True):
    next_batch_watermark_ms: int = msgspec.field(name="nextBatchWatermarkMs")
    state_unique_ids: dict[str, tuple[tuple[str, ...], ...]] | None = msgspec.field(
        name="stateUniqueIds", default=None
    )


class _Ancestor(msgspec.Struct, frozen=True):
    version: int
    id: str = msgspec.field(name="checkpointUniqueId")


_OFFSETS: Final = msgspec.json.Decoder(_OffsetsForm)
_COMMITS: Final = msgspec.json.Decoder(_CommitForm)
_LINEAGES: Final = msgspec.json.Decoder(tuple[_Ancestor, ...])


def is_committed(checkpoint: Path, batch: BatchId) -> bool:
    """Return whether Spark has committed a batch; costs one question to the file system."""
    return exists(checkpoint / COMMITS / str(batch))


def read_batch(checkpoint: Path, batch: BatchId) -> BatchLog:
    """Read what Spark recorded before it ran a batch; the batch may still be running."""
    file = checkpoint / OFFSETS / str(batch)
    # Version 2 has a name before each offset: it comes with named sources, which are off.
    watermark, *offsets = _entry(file, "v1")
    form = _decode(_OFFSETS, file, watermark)
    return BatchLog(
        tuple(None if line == _NO_OFFSET else line for line in offsets),
        form.batch_watermark_ms,
        form.conf,
    )


def replace_offsets(checkpoint: Path, batch: BatchId, offsets: Sequence[str | None]) -> None:
    """Replace the offsets of a batch; the number of sources may differ, and offsets may be None.

    Spark starts a source that has no offset at its beginning. No query may be running in the
    directory.
    """
    file = checkpoint / OFFSETS / str(batch)
    watermark, *_ = _entry(file, "v1")
    lines = [_NO_OFFSET if offset is None else offset for offset in offsets]
    replace_text(file, "\n".join(["v1", watermark, *lines]))


def batches(checkpoint: Path, log: str) -> list[BatchId]:
    return sorted(BatchId(int(name)) for name in names(checkpoint / log) if name.isdecimal())


def next_watermark_ms(checkpoint: Path, batch: BatchId) -> int:
    """Return the watermark that the batch after a committed one runs with; 0 for none."""
    return _commit(checkpoint, batch).next_batch_watermark_ms


def state_ids(checkpoint: Path, batch: BatchId) -> Mapping[str, tuple[tuple[str, ...], ...]] | None:
    """Return for each operator the ids of the stores of each partition, in no known order.

    None if the state's files carry no ids (checkpoint format 1).
    """
    return _commit(checkpoint, batch).state_unique_ids


class StateVersion(NamedTuple):
    """One version of one store, by the id that its writer gave it."""

    version: int
    id: str

    @property
    def changelog(self) -> str:
        return f"{self.version}_{self.id}.changelog"

    @property
    def snapshot(self) -> str:
        """The name of the file with the whole state; it does not exist for every version."""
        return f"{self.version}_{self.id}.zip"


def lineage_of(changelog: Path, version: int) -> list[StateVersion]:
    """Return the versions of a store that led to the one a changelog made, oldest first.

    They begin at the newest snapshot that the writer knew of, or at version 1. FileNotFoundError if
    there is no such file.
    """
    try:
        with changelog.open("rb") as file:
            head = _Head(file)
            head.text()  # the version of the changelog's format
            found = [
                StateVersion(entry.version, entry.id) for entry in _LINEAGES.decode(head.text())
            ]
    except (ValueError, struct.error) as error:
        raise RecoveryError(
            f"{changelog} cannot be read as a changelog with lineage, compressed by lz4: {error}."
        ) from error
    if [state.version for state in found] != list(range(version - len(found), version)):
        raise RecoveryError(f"{changelog} has a lineage with holes: {found}.")
    return found


def format_of(checkpoint: Path, batch: BatchId) -> int:
    """Return the checkpoint format of a committed batch."""
    file = checkpoint / COMMITS / str(batch)
    try:
        version = file.read_text(encoding="utf-8").partition("\n")[0]
    except FileNotFoundError as error:
        raise RecoveryError(f"{file} is not there.") from error
    return 1 if version == "v1" else 2


def mint_query_id(checkpoint: Path) -> str:
    """Assign a new id to the query of a checkpoint directory, as a fork needs; return the id.

    Spark stops a running query when one with the same id starts in the same application. No
    query may be running in the directory.
    """
    query_id = str(uuid4())
    replace_text(checkpoint / METADATA, msgspec.json.encode({"id": query_id}).decode())
    return query_id


def replace_text(file: Path, text: str) -> None:
    """Replace the content of a file in a checkpoint directory.

    Links to the old file, and so pins, keep the old content. Hadoop's checksum goes with it.
    """
    new = file.with_name(f".{file.name}.{uuid4()}.tmp")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _commit(checkpoint: Path, batch: BatchId) -> _CommitForm:
    file = checkpoint / COMMITS / str(batch)
    (line,) = _entry(file, "v1", "v2", "v3")[:1]
    return _decode(_COMMITS, file, line)


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


def _decode(decoder: msgspec.json.Decoder[Form], file: Path, line: str) -> Form:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise RecoveryError(f"{file} makes no sense: {error}.") from error


class _Head:
    """The texts at the beginning of a changelog, which is a sequence of compressed blocks."""

    # Magic, method, compressed and plain size, checksum, as lz4-java writes them.
    _BLOCK: Final = struct.Struct("<8sBiiI")
    _BLOCK_MAX: Final = 1 << 25
    _TEXT: Final = struct.Struct(">H")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._plain = b""

    def text(self) -> str:
        """Read the next text, as Java's `DataOutput.writeUTF` writes it."""
        (length,) = self._TEXT.unpack(self._read(self._TEXT.size))
        return self._read(length).decode()

    def _read(self, size: int) -> bytes:
        while len(self._plain) < size:
            head = self._file.read(self._BLOCK.size)
            magic, method, compressed_size, plain_size, _ = self._BLOCK.unpack(head)
            if magic != b"LZ4Block" or not 0 < compressed_size <= plain_size <= self._BLOCK_MAX:
                raise ValueError("there is no block of lz4 where one must be")
            block = self._file.read(compressed_size)
            if method & 0xF0 == 0x20:
                try:
                    block = pyarrow.Codec("lz4_raw").decompress(block, plain_size, asbytes=True)
                except OSError as error:
                    raise ValueError(str(error)) from error
            self._plain += block
        data, self._plain = self._plain[:size], self._plain[size:]
        return data

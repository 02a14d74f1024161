"""A Delta table in a bucket of S3, or of what speaks like it.

Executors write to this machine's disk; staging sends the files to the bucket, beside the table,
before the batch is done, so that what is staged lasts as it does on a disk. A file gets its last
name as a copy, which the bucket makes unless the file is very large. Credentials come from the
environment or the machine, for obstore and deltalake alike, and are in no address.
"""

import hashlib
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from obstore.exceptions import BaseError

from cutwater.errors import NotFound
from cutwater.ids import BatchId, Generation, PipelineId, SinkId
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import Rows
from cutwater.sinks.delta.foreign_types import open_parquet
from cutwater.sinks.delta.storage import FileFacts
from cutwater.sinks.staging.directory import HIDDEN
from cutwater.sinks.staging.parquet import StagedFiles, holds_rows, settled_name
from cutwater.store.backends.directories import try_to_remove_tree
from cutwater.store.backends.location import Location
from cutwater.store.backends.object_store import ObjectBackend, RequestLimits
from cutwater.store.paths import ObjectPath

T = TypeVar("T")

_ENDPOINT: Final = "aws_endpoint_url_s3"
_CHUNK_BYTES: Final = 8 << 20

COPY_BYTES_MAX: Final = 1 << 30
"""A larger object goes through this machine's disk instead of being copied by the bucket.

S3 copies at most 5 GiB with one request, and a copy of several GiB outlasts the time limit of a
request. obstore has no copy in parts.
"""


class BucketStorage:
    """A prefix in a bucket; fills `TableStorage`."""

    def __init__(self, location: Location) -> None:
        limits = RequestLimits()
        retry = limits.retry_config(limits.tries)
        self._location = location
        self._backend = ObjectBackend(self.address, location.opener())
        self._store = location.opener()(limits.client_options, retry)

    @property
    def address(self) -> str:
        return f"s3://{self._location.bucket}/{self._location.path}"

    @property
    def options(self) -> dict[str, str]:
        """Options for deltalake: endpoint, region, and that a commit never replaces another."""
        options = {"aws_conditional_put": "etag"}
        endpoint = self._location.options.get(_ENDPOINT, "")
        if endpoint:
            options["aws_endpoint_url"] = endpoint
        if endpoint.startswith("http://"):
            options["aws_allow_http"] = "true"
        if "region" in self._location.options:
            options["aws_region"] = self._location.options["region"]
        return options

    def prepare(self) -> None:
        """Do nothing: a bucket has no directories."""

    def entries(self) -> list[str]:
        def find() -> list[str]:
            found = obstore.list_with_delimiter(self._store)
            objects = [str(entry["path"]) for entry in found["objects"]]
            return [path.rpartition("/")[2] for path in (*found["common_prefixes"], *objects)]

        return _call_bucket(find)

    def has_log(self) -> bool:
        return DeltaTable.is_deltatable(self.address, self.options)

    def facts(self, name: str) -> FileFacts | None:
        try:
            found = _call_bucket(lambda: obstore.head(self._store, name))
        except FileNotFoundError:
            return None
        return FileFacts(found["size"], int(found["last_modified"].timestamp() * 1000))

    def read(self, name: str) -> bytes:
        try:
            return self._backend.read(ObjectPath(name))
        except NotFound as error:
            raise FileNotFoundError(name) from error

    def reader(self, name: str) -> "BucketFile":
        return BucketFile(_call_bucket(lambda: obstore.open_reader(self._store, name)))

    def parquet(self, name: str) -> pq.ParquetFile:
        return open_parquet(pa.PythonFile(self.reader(name), mode="r"))

    def publish(self, local: Path, name: str) -> None:
        self._backend.put_file(ObjectPath(name), local)

    def fetch(self, name: str, local: Path) -> None:
        self._backend.read_to_file(ObjectPath(name), local)

    def copy(self, source: str, target: str) -> None:
        """Let the bucket copy an object of at most `COPY_BYTES_MAX`."""
        _call_bucket(lambda: obstore.copy(self._store, source, target))

    def below(self, prefix: str) -> list[str]:
        return [str(path) for path in self._backend.list(ObjectPath(prefix))]

    def remove(self, name: str) -> None:
        self._backend.delete(ObjectPath(name))

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: an object that is there lasts."""


class BucketFile:
    """An object as pyarrow reads a file; its errors are those of files."""

    def __init__(self, reader: Any) -> None:  # noqa: ANN401 - obstore's own
        self._reader = reader
        self.closed = False

    def read(self, size: int | None = None) -> bytes:
        return _call_bucket(lambda: bytes(self._reader.read(size)))

    def seek(self, offset: int, whence: int = 0) -> int:
        return _call_bucket(lambda: int(self._reader.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._reader.tell())

    def size(self) -> int:
        return int(self._reader.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class BucketStaging:
    """Staged files in a bucket; fills `Staging`. The layout is that of `StagedFiles`."""

    def __init__(self, storage: BucketStorage, pipeline: PipelineId, sink: SinkId) -> None:
        self._storage = storage
        self._base = f"{HIDDEN}/{pipeline}/{sink}"
        self._disk = Path(tempfile.mkdtemp(prefix="cutwater-delta-"))
        # No other process needs its contents: everything that counts is in the bucket.
        weakref.finalize(self, try_to_remove_tree, self._disk)
        self._files = StagedFiles(self._disk, pipeline, sink)
        self._schemas: dict[str, BlobRef] = {}
        # As in `HiddenFiles`, with the objects of each batch.
        self._done: dict[tuple[Generation, BatchId], Committable] = {}

    def write(
        self,
        rows: Rows,
        place: tuple[Generation, BatchId],
        partition_by: Sequence[str],
        check: Callable[[Sequence[Path]], None] | None = None,
    ) -> tuple[int, tuple[BlobRef, ...]]:
        count, blobs = self._files.write(rows, place, partition_by, check)
        try:
            for blob in blobs:
                self._storage.publish(self._disk / blob.name, _key(blob))
        finally:
            self._files.forget([Committable(SinkId(""), *place, count, blobs)])
        return count, blobs

    def write_schema(self, text: str, generation: Generation) -> BlobRef:
        digest = hashlib.sha256(text.encode()).hexdigest()
        name = f"{self._base}/g{generation:06d}/schema-{digest}.json"
        if name not in self._schemas:
            local = self._disk / f"{digest}.json"
            local.write_text(text, encoding="utf-8")
            self._storage.publish(local, name)
            self._schemas[name] = BlobRef(name, local.stat().st_size, digest)
        return self._schemas[name]

    def schema_text(self, committable: Committable) -> str:
        (blob,) = (blob for blob in committable.blobs if not holds_rows(blob))
        return self._storage.read(blob.name).decode()

    def data(self, committables: Sequence[Committable]) -> Iterator[BlobRef]:
        return self._files.data(committables)

    def settle(self, blobs: Sequence[BlobRef]) -> dict[BlobRef, str]:
        """Copy files to their last names; the staged ones stay, and so does what is there.

        FileNotFoundError if a file is in neither place, or not as large as it was.
        """
        settled = {blob: settled_name(blob) for blob in blobs}
        for blob, name in settled.items():
            if self._storage.facts(name) is None and self._storage.facts(_key(blob)) is not None:
                self._copy(blob, name)
            facts = self._storage.facts(name)
            if facts is None or facts.size_bytes != blob.size_bytes:
                message = f"{blob.name} is gone or not what was staged"
                raise FileNotFoundError(message)
        return settled

    def _copy(self, blob: BlobRef, name: str) -> None:
        if blob.size_bytes <= COPY_BYTES_MAX:
            self._storage.copy(_key(blob), name)
            return
        local = self._disk / f"{uuid.uuid4().hex}.large"
        try:
            self._storage.fetch(_key(blob), local)
            self._storage.publish(local, name)
        finally:
            local.unlink(missing_ok=True)

    def note_committed(self, committables: Sequence[Committable]) -> None:
        self._done.update(
            {
                (committable.generation, committable.batch): committable
                for committable in committables
            }
        )

    def retain(self, keep: Sequence[Committable]) -> None:
        kept = {(committable.generation, committable.batch) for committable in keep}
        for place, committable in sorted(self._done.items()):
            if place in kept:
                continue
            for blob in committable.blobs:
                if holds_rows(blob):
                    self._storage.remove(_key(blob))
            self._done.pop(place, None)

    def problem(self, committable: Committable) -> str | None:
        for blob in committable.blobs:
            name = _key(blob)
            facts = self._storage.facts(name)
            if facts is None and holds_rows(blob):
                name = settled_name(blob)
                facts = self._storage.facts(name)
            if facts is None:
                return f"{blob.name} is missing"
            if facts.size_bytes != blob.size_bytes:
                return f"{blob.name} has {facts.size_bytes} bytes instead of {blob.size_bytes}"
            found = self._sha256(name)
            if found != blob.sha256:
                return f"{blob.name} has another content: sha256 {found}"
        return None

    def _sha256(self, name: str) -> str:
        digest, file = hashlib.sha256(), self._storage.reader(name)
        while part := file.read(_CHUNK_BYTES):
            digest.update(part)
        return digest.hexdigest()

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        self.note_committed(
            [committable for committable in keep if committable.generation < generation]
        )
        kept = {_key(blob) for committable in keep for blob in committable.blobs}
        for name in self._storage.below(self._base):
            staged_by = int(name.removeprefix(f"{self._base}/g").partition("/")[0])
            if staged_by < generation and name not in kept:
                self._storage.remove(name)

    def spool(self, name: str) -> Path:
        return self._disk / name

    def clear_spools(self, own: str) -> None:
        """Do nothing: each process has its own directory, which is deleted with it."""


def _key(blob: BlobRef) -> str:
    """Name a staged object; a partition's value may hold what an object's name may not."""
    return quote(blob.name, safe="/=._-~+")


def _call_bucket(call: Callable[[], T]) -> T:
    """Call the bucket; turn its failures into `OSError`, as with files."""
    try:
        return call()
    except BaseError as error:
        raise OSError(str(error).partition("\n")[0]) from error

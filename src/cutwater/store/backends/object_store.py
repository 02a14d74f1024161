"""A backend in an object store: S3 and what speaks like it, Google Cloud Storage, Azure.

`create` is a conditional put: the store itself refuses a name that is taken, so exactly one writer
wins (rule F5). `probe` tests whether a store really does that. Every request has a timeout. A
failed request is sent again after a growing pause, if that is safe. If the outcome is still not
known after that, the error is `OutcomeUnknown`, never `NotFound` (rule F15). Big files are sent in
parts and fetched in ranges, so no big file is ever held in memory. Needs the package obstore
(docs/adr/0011).
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError

from cutwater.errors import NotFound, OutcomeUnknown, StoreError, Unavailable
from cutwater.store.backends.backend import AT_ONCE
from cutwater.store.backends.object_store_errors import (
    Failed,
    Failure,
    failure_of,
    name_is_taken,
    object_is_absent,
    words,
)
from cutwater.store.paths import ObjectPath, object_path

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")

PART_BYTES: Final = 8 << 20
"""A file of more bytes is sent in parts, and fetched in ranges, of this size."""

_PARTS_MAX: Final = 9_000
"""Stores accept 10,000 parts of one object, so the parts of a very big file are bigger."""

_PARTS_AT_ONCE: Final = 4
UPLOADS_AT_ONCE: Final = 4
"""How many big files one backend sends at the same time, each in several parallel parts."""

REQUESTS_AT_ONCE: Final = 16
"""How many other requests may be in progress, so that a heartbeat never waits for a big file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The timeouts and retries of requests to a store.

    Attributes:
        request_s: The timeout for one request, including its answer.
        tries: How often a request is sent at most.
        pause_s: The pause before the second try; each further pause is twice as long.
        total_s: After this time no request is sent again.
    """

    connect_s: float = 5.0
    request_s: float = 20.0
    tries: int = 6
    pause_s: float = 0.1
    pause_max_s: float = 5.0
    total_s: float = 60.0

    @property
    def client_options(self) -> "ClientConfig":
        return {
            "connect_timeout": timedelta(seconds=self.connect_s),
            "timeout": timedelta(seconds=self.request_s),
        }

    def retry_config(self, tries: int) -> "RetryConfig":
        """Return how often obstore itself sends a request again."""
        return {
            "max_retries": tries - 1,
            "retry_timeout": timedelta(seconds=self.total_s),
            "backoff": {
                "init_backoff": timedelta(seconds=self.pause_s),
                "max_backoff": timedelta(seconds=self.pause_max_s),
            },
        }

    def pauses(self) -> Iterator[float]:
        """Yield the pause before each further try, until the time is up.

        The pauses have jitter, so that many clients of a failed server do not return all at once.
        """
        end_s = time.monotonic() + self.total_s
        for number in range(self.tries - 1):
            pause_s = min(self.pause_s * 2**number, self.pause_max_s) * random.uniform(0.5, 1)
            if time.monotonic() + pause_s > end_s:
                return
            yield pause_s


Opener = Callable[["ClientConfig", "RetryConfig"], "ObjectStore"]
"""Opens an obstore store with these limits."""


class ObjectBackend:
    """Objects in a bucket, below a prefix; fills the port `Backend`."""

    def __init__(self, url: str, opener: Opener, limits: RequestLimits | None = None) -> None:
        """Open a bucket; no request is sent yet. The address has no secrets: messages show it."""
        self._url = url
        self._limits = limits or RequestLimits()
        client_options = self._limits.client_options
        # Requests are repeated here and not in obstore, so that the outcome of each is known.
        self._store = opener(client_options, self._limits.retry_config(1))
        # Except for the parts of a big file, which are invisible until the upload is completed.
        self._parts = opener(client_options, self._limits.retry_config(self._limits.tries))
        self._slots = BoundedSemaphore(REQUESTS_AT_ONCE)
        self._uploads = BoundedSemaphore(UPLOADS_AT_ONCE)

    @property
    def url(self) -> str:
        return self._url

    @property
    def at_once(self) -> int:
        return AT_ONCE

    # -- writing

    def create(self, path: ObjectPath, data: bytes) -> bool:
        request = self._request(path, writes=True)

        def create() -> bool:
            try:
                self._send(lambda: obstore.put(self._store, path, data, mode="create"))
            except AlreadyExistsError as error:
                if not self._is_taken(path, error):
                    raise
                if request.is_lost:
                    reason = f"{self._url}: it is there, and an answer was lost: it may be ours"
                    raise OutcomeUnknown(path, reason) from error
                return False
            return True

        return request.until_answered(create)

    def _is_taken(self, path: ObjectPath, error: Exception) -> bool:
        """Return whether the name is taken; otherwise the refused create may be repeated."""
        try:
            return name_is_taken(error) or self.exists(path)
        except Unavailable:
            return False

    def put(self, path: ObjectPath, data: bytes) -> None:
        self._write(path, lambda: obstore.put(self._store, path, data, use_multipart=False))

    def put_file(self, path: ObjectPath, local_file: Path) -> None:
        object_path(path)
        size_bytes = local_file.stat().st_size
        if size_bytes <= PART_BYTES:
            self.put(path, local_file.read_bytes())
            return
        part_bytes = max(PART_BYTES, size_bytes // _PARTS_MAX)

        def put_parts() -> None:
            reader = _Reader(local_file, part_bytes)
            try:
                obstore.put(
                    self._parts,
                    path,
                    iter(reader),
                    use_multipart=True,
                    chunk_size=part_bytes,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except OSError:
                # obstore's own "not found" is an `OSError` too.
                if reader.error is not None:
                    raise _LocalError(reader.error) from reader.error
                raise

        try:
            with self._uploads:
                self._request(path, writes=True).until_answered(put_parts)
        except _LocalError as error:
            raise error.cause from None

    def delete(self, path: ObjectPath) -> None:
        def delete() -> None:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError as error:
                if not object_is_absent(error):
                    raise

        self._write(path, delete)

    def _write(self, path: ObjectPath, call: Callable[[], object]) -> None:
        self._request(path, writes=True).until_answered(lambda: self._send(call))

    # -- reading

    def read(self, path: ObjectPath) -> bytes:
        return self._read(path, lambda: bytes(obstore.get(self._store, path).bytes()))

    def read_to_file(self, path: ObjectPath, local_file: Path) -> None:
        found = self._head(path)
        with local_file.open("wb") as copy:
            for start in range(0, found["size"], PART_BYTES):
                end = min(start + PART_BYTES, found["size"])
                copy.write(self._range(path, found, start, end))

    def _range(self, path: ObjectPath, found: "ObjectMeta", start: int, end: int) -> bytes:
        """Return a range of the object that was found; fail if the object was replaced since."""

        def get() -> bytes:
            options: obstore.GetOptions = {"range": (start, end), "if_match": found["e_tag"]}
            return bytes(obstore.get(self._store, path, options=options).bytes())

        return self._read(path, get)

    def exists(self, path: ObjectPath) -> bool:
        try:
            self._head(path)
        except NotFound:
            return False
        return True

    def size(self, path: ObjectPath) -> int:
        return self._head(path)["size"]

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        def find() -> tuple[ObjectPath, ...]:
            found = obstore.list(self._store, prefix, offset=after)
            return tuple(sorted(ObjectPath(entry["path"]) for chunk in found for entry in chunk))

        return self._request(prefix).until_answered(lambda: self._send(find))

    def _head(self, path: ObjectPath) -> "ObjectMeta":
        return self._read(path, lambda: obstore.head(self._store, path))

    def _read(self, path: ObjectPath, call: Callable[[], T]) -> T:
        try:
            return self._request(path, reads=True).until_answered(lambda: self._send(call))
        except FileNotFoundError as error:
            if not object_is_absent(error):
                # A missing bucket must not look like an empty one. It cannot be listed.
                self.list(path)
            raise NotFound(path) from error

    # -- requests

    def _request(
        self, path: ObjectPath, *, reads: bool = False, writes: bool = False
    ) -> "_RetriedRequest":
        return _RetriedRequest(
            url=self._url,
            limits=self._limits,
            path=object_path(path),
            reads=reads,
            writes=writes,
        )

    def _send(self, call: Callable[[], T]) -> T:
        with self._slots:
            return call()


class _Reader:
    """Iterates over the parts of a local file; remembers whether a read failed."""

    def __init__(self, local_file: Path, part_bytes: int) -> None:
        self._local_file = local_file
        self._part_bytes = part_bytes
        self.error: OSError | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self._local_file.open("rb") as file:
                while part := file.read(self._part_bytes):
                    yield part
        except OSError as error:
            self.error = error
            raise


class _LocalError(Exception):
    """Carries the error of a local file past the handling of store errors."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(slots=True, kw_only=True)
class _RetriedRequest:
    """One call of a backend, repeated until it is answered or the time limit is reached.

    Attributes:
        reads: Whether the call reads one object, so that "not found" is an answer.
        writes: Whether the call changes something, so that a lost answer matters.
        is_lost: Whether an answer was lost, so that the call may have been executed.
    """

    url: str
    limits: RequestLimits
    path: ObjectPath
    reads: bool
    writes: bool
    is_lost: bool = False

    def until_answered(self, call: Callable[[], T]) -> T:
        """Repeat the call until there is an answer.

        Raises:
            FileNotFoundError: If the object to read, or its bucket, does not exist.
            OutcomeUnknown: If a write may or may not have happened.
            Unavailable: If nothing was changed.
        """
        pauses = self.limits.pauses()
        while True:
            try:
                return call()
            except Failed as error:
                pause_s = self._pause_s(error, pauses)
                if pause_s is None:
                    raise self._give_up(error) from error
            time.sleep(pause_s)

    def _pause_s(self, error: Exception, pauses: Iterator[float]) -> float | None:
        """Return the pause before the call is repeated; None if it must not be repeated."""
        failure = failure_of(error)
        if failure is Failure.ABSENT and self.reads:
            raise error
        if failure in {Failure.ABSENT, Failure.REFUSED}:
            return None
        self.is_lost = self.is_lost or failure is Failure.LOST
        return next(pauses, None)

    def _give_up(self, error: Exception) -> StoreError:
        kind = OutcomeUnknown if self.is_lost and self.writes else Unavailable
        return kind(self.path, f"{self.url}: {words(error)}")

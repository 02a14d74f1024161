"""Where a store is: the one module that knows which addresses there are and opens them.

    a directory, file:///a/directory      on a disk that lasts
    s3://bucket/prefix                    S3, or what speaks like it (?endpoint=…, ?region=…)
    gs://bucket/prefix                    Google Cloud Storage
    az://container/prefix                 Azure Blob Storage (?account=…)
    abfss://container@account.dfs.core.windows.net/prefix

Addresses appear in messages and logs, so they hold no secrets: credentials come from the
environment, or from the machine, as docs/reference/stores.md explains. `memory://name` lives as
long as the process and is for tests.

`probe` checks a store before it is trusted. Some file systems and gateways accept every call and
keep little of what they accept; a race that both sides win would only be noticed when data is
wrong. So `probe` writes a small object, reads it back, fails to create it a second time, lists it,
replaces it and deletes it.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from cutwater.errors import ConfigError, OutcomeUnknown
from cutwater.store.backends.backend import Backend
from cutwater.store.backends.directories import is_directory
from cutwater.store.backends.local import LocalBackend
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import NAMES, PROBES, ObjectPath, probe_object

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

ACCEPTED: Final = (
    "a directory, file:///directory, s3://bucket/prefix, gs://bucket/prefix, "
    "az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix"
)
"""What an address may be, in words."""

_S3_ENDPOINT: Final = "aws_endpoint_url_s3"
"""Of several names for the endpoint, the one that takes precedence over the environment."""

_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {"endpoint": _S3_ENDPOINT, "region": "region"},
    "gs": {"endpoint": "base_url"},
    "az": {"account": "account_name", "endpoint": "endpoint"},
}
"""The options that may follow the question mark, with obstore's names for them."""

_SAME_AS: Final = {"s3a": "s3", "abfss": "az", "abfs": "az"}
_ENDPOINT_NAMES: Final = (_S3_ENDPOINT, "endpoint", "base_url")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_PROBE_TRIES: Final = 5
_SHARED: Final[dict[str, MemoryBackend]] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a store; nothing is opened yet.

    Attributes:
        kind: `file`, `memory`, `s3`, `gs` or `az`.
        bucket: The bucket or container; the name of a store in memory; empty for a directory.
        path: The directory, or the prefix in the bucket.
        options: The options for obstore, by obstore's names.
    """

    text: str
    kind: str
    bucket: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: str | Path, option: str = "store") -> "Location":
        """Parse an address; ConfigError if it is none, or the package for it is not installed."""
        text = str(store)
        if isinstance(store, Path) or "://" not in text:
            if not text.strip():
                raise ConfigError(option, f"is empty; it may be {ACCEPTED}")
            return cls(text, "file", "", text)
        address = urlsplit(text)
        kind = _SAME_AS.get(address.scheme, address.scheme)
        if kind == "file" and address.netloc in {"", "localhost"} and address.path:
            return cls(text, "file", "", unquote(address.path))
        if kind == "memory":
            return cls(text, "memory", address.netloc, "")
        if kind not in _OPTIONS:
            shown = f"{address.scheme}://…{address.path}" if "@" in address.netloc else text
            raise ConfigError(option, f"{shown!r} is no place for a store; it may be {ACCEPTED}")
        return _in_a_bucket(text, kind, option)

    @property
    def directory(self) -> Path | None:
        """None for a store that is not in a directory."""
        return Path(self.path) if self.kind == "file" else None

    def backend(self) -> Backend:
        """Open the store; create its directory if it is in one."""
        if self.kind == "file":
            return LocalBackend(Path(self.path))
        if self.kind == "memory":
            return _SHARED.setdefault(self.bucket, MemoryBackend())
        from cutwater.store.backends.object_store import ObjectBackend  # noqa: PLC0415 - an extra

        return ObjectBackend(self.text.partition("?")[0], self.opener())

    def opener(self) -> "Callable[[ClientConfig, RetryConfig], ObjectStore]":
        """Return the function that opens the bucket with obstore, for an `ObjectBackend`."""
        from obstore import store  # noqa: PLC0415 - an extra

        # Each class has names of its own for its options; they were checked by `of`.
        classes: dict[str, Any] = {
            "s3": partial(store.S3Store, conditional_put="etag"),
            "gs": store.GCSStore,
            "az": store.AzureStore,
        }
        endpoint = next(
            (value for name, value in self.options.items() if name in _ENDPOINT_NAMES), ""
        )

        def open_store(
            client_options: "ClientConfig", retry_config: "RetryConfig"
        ) -> "ObjectStore":
            if endpoint.startswith("http://"):
                # The user wrote http:// on purpose; without this option obstore would refuse.
                client_options["allow_http"] = True
            try:
                made: ObjectStore = classes[self.kind](
                    self.bucket,
                    prefix=self.path or None,
                    config=dict(self.options),
                    client_options=client_options,
                    retry_config=retry_config,
                )
            except Exception as error:
                reason = str(error).partition("\n")[0].rstrip(".")
                raise ConfigError("store", f"{self.text} cannot be opened: {reason}") from error
            return made

        return open_store


def file_path(uri: str, option: str) -> str | None:
    """Return the path that a `file:` address names; None for a plain path or another scheme."""
    if not uri.lower().startswith("file:"):
        return None
    parts = urlsplit(uri)
    if parts.netloc not in {"", "localhost"}:
        raise ConfigError(option, f"a file: address has three slashes, not a host: {uri}")
    return unquote(parts.path)


def backend_at(store: str | Path) -> Backend:
    """Open the store at an address."""
    return Location.of(store).backend()


def existing_backend(store: str | Path, option: str = "--store") -> Backend:
    """Open an existing store; none is created, since a missing store means a mistyped address."""
    location = Location.of(store, option)
    if location.directory is not None and not is_directory(location.directory / NAMES):
        reason = f"there is no store with a pipeline in it at {location.directory}"
        raise ConfigError(option, reason)
    return location.backend()


def backend_for_writing(store: str | Path) -> Backend:
    """Open the store at an address and prove that it can be trusted, before a run writes to it."""
    backend = backend_at(store)
    if isinstance(backend, LocalBackend):
        backend.clean()
    probe(backend)
    return backend


def _in_a_bucket(text: str, kind: str, option: str) -> Location:
    """Parse the address of a bucket; messages do not repeat parts that may be secret."""
    address = urlsplit(text)
    shown = f"{address.scheme}://…{address.path}"
    bucket, at, account = address.netloc.partition("@")
    options = {}
    if at and kind == "az" and ":" not in bucket:
        options["account_name"] = account.partition(".")[0]
    elif at:
        reason = f"{shown} has a user or a password in it, which the environment must give"
        raise ConfigError(option, reason)
    if not bucket:
        raise ConfigError(option, f"{text!r} names no bucket; it may be {ACCEPTED}")
    known = _OPTIONS[kind]
    for name, value in parse_qsl(address.query, keep_blank_values=True):
        if name not in known:
            listed = " and ".join(f"?{name}=" for name in known)
            reason = f"{shown} has an option {name!r}; {address.scheme}:// knows {listed}"
            raise ConfigError(option, f"{reason}, and the environment gives credentials")
        options[known[name]] = value
    if kind == "s3" and _S3_ENDPOINT not in options:
        found = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
        options |= {_S3_ENDPOINT: found} if found else {}
    if find_spec("obstore") is None:
        reason = f"{shown} needs the package obstore: pip install 'cutwater[objects]'"
        raise ConfigError(option, reason)
    return Location(text, kind, bucket, unquote(address.path).strip("/"), options)


def probe(backend: Backend) -> None:
    """Prove that a backend keeps what it is given and lets exactly one writer win.

    Call it once when a process opens its store for writing. It leaves no objects. The ConfigError
    of a backend that lacks something names it.
    """
    for _ in range(_PROBE_TRIES - 1):
        # A lost answer proves nothing about the store: try again with another object.
        with suppress(OutcomeUnknown):
            _try_once(backend, probe_object(uuid.uuid4().hex))
            return
    _try_once(backend, probe_object(uuid.uuid4().hex))


def _try_once(backend: Backend, path: ObjectPath) -> None:
    try:
        _check(backend.create(path, b"first"), backend, "create a new object")
        _check(backend.read(path) == b"first", backend, "give back what was written")
        refused = not backend.create(path, b"second")
        _check(refused, backend, "refuse to create an object that is there (create-if-absent)")
        kept = backend.read(path) == b"first"
        _check(kept, backend, "keep an object when it refuses to create it again")
        listed = path in backend.list(PROBES)
        _check(listed, backend, "list an object that was just written")
        backend.put(path, b"third")
        _check(backend.read(path) == b"third", backend, "replace an object")
    finally:
        backend.delete(path)
    _check(not backend.exists(path), backend, "delete an object")


def _check(able: bool, backend: Backend, ability: str) -> None:
    if not able:
        raise ConfigError("store", f"{backend.url} does not {ability}")

"""The question a pipeline asks its store before it trusts it: are you what the protocol needs?

Some file systems and gateways accept everything and keep little of it; a lost race that both
sides win would only be noticed when data is wrong. So the first thing done to a store is a small
object: written, read back, refused a second time, listed, replaced and deleted.
"""

import uuid
from contextlib import suppress
from typing import Final

from cutwater.errors import ConfigError, OutcomeUnknown
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import PROBES, ObjectPath, probe_object

_TRIES: Final = 5


def probe(backend: Backend) -> None:
    """Prove that a backend keeps what it is given and lets one writer win.

    Call it once when a process opens its store for writing. Nothing is left behind.

    Raises:
        ConfigError: If the backend lacks something; it says what.
        StoreError: If the store cannot be read or written now.
    """
    for _ in range(_TRIES - 1):
        # A lost answer says nothing about the store: another object is tried.
        with suppress(OutcomeUnknown):
            _try(backend, probe_object(uuid.uuid4().hex))
            return
    _try(backend, probe_object(uuid.uuid4().hex))


def _try(backend: Backend, path: ObjectPath) -> None:
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

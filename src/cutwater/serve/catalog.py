"""Which pipelines are served: the one that this process runs, or all that a store holds.

A pipeline is named by its uuid or its name, in an address as in a command.
"""

import threading
from typing import Final, Protocol

from cutwater.errors import ConfigError
from cutwater.ids import PipelineId
from cutwater.serve.served import Served
from cutwater.store.backend import Backend
from cutwater.store.catalog import identify, list_pipelines
from cutwater.store.opened import OpenStore

LISTED_MAX: Final = 500


class NotServed(Exception):
    """There is no such pipeline here; the text says which there are."""


class Pipelines(Protocol):
    """The pipelines that are served."""

    def all(self) -> tuple[Served, ...]:
        """Return all of them, by name.

        Raises:
            StoreError: If the store cannot be read.
        """
        ...

    def find(self, text: str) -> Served:
        """Return the pipeline of that uuid or name.

        Raises:
            NotServed: If there is none.
            StoreError: If the store cannot be read.
        """
        ...


class OnePipeline:
    """Serves the pipeline that this process runs."""

    def __init__(self, served: Served) -> None:
        """Serve this one."""
        self._served = served

    def all(self) -> tuple[Served, ...]:
        """Return it."""
        return (self._served,)

    def find(self, text: str) -> Served:
        """Return it, if it is meant; see `Pipelines`."""
        if text not in {self._served.name, self._served.store.pipeline}:
            raise NotServed(f"this process runs {self._served.name}, and no {text[:100]!r}")
        return self._served


class StoredPipelines:
    """Serves all pipelines of a store."""

    def __init__(self, backend: Backend, token_hint: str = "") -> None:
        """Serve what this store holds, now and later."""
        self._backend = backend
        self._token_hint = token_hint
        self._lock = threading.Lock()
        self._served: dict[PipelineId, Served] = {}

    def all(self) -> tuple[Served, ...]:
        """Return all of them; see `Pipelines`."""
        found = list(list_pipelines(self._backend).items())[:LISTED_MAX]
        return tuple(self._of(name, pipeline) for name, pipeline in found)

    def find(self, text: str) -> Served:
        """Return one; see `Pipelines`."""
        with self._lock:
            known = self._served.get(PipelineId(text))
        if known is not None:
            return known
        try:
            name, pipeline = identify(self._backend, text)
        except ConfigError as error:
            raise NotServed(error.reason) from error
        return self._of(name, pipeline)

    def _of(self, name: str, pipeline: PipelineId) -> Served:
        with self._lock:
            if pipeline not in self._served:
                store = OpenStore.of(self._backend, pipeline)
                self._served[pipeline] = Served(name, store, token_hint=self._token_hint)
            return self._served[pipeline]

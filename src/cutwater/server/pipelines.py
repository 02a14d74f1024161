"""The pipelines that a server shows: the one that this process runs, or all in a store.

A path identifies a pipeline by its uuid or its name, as a command does.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cutwater.errors import ConfigError, Corrupt, CutwaterError, NotFound, StoreError
from cutwater.ids import PipelineId
from cutwater.server.pipeline_view import PipelineView
from cutwater.store.backends.backend import Backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline, list_pipelines
from cutwater.views.models import Job

LISTED_MAX: Final = 500
UNREADABLE: Final = "UNREADABLE"
"""The state of a pipeline whose records are damaged, or written by a newer version."""

STARTING: Final = "STARTING"
SERVING: Final = "SERVING"
READY: Final = frozenset({"RUNNING", SERVING})
"""The states in which `/readyz` reports a process as ready."""

_NAMED_MAX: Final = 20


class NotServed(Exception):
    """There is no such pipeline here; the text names the pipelines that there are."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A pipeline whose records cannot be read; its name may only be its uuid."""

    name: str
    store: str
    error: CutwaterError

    def job(self) -> Job:
        return Job(
            jid=self.name,
            name=self.name,
            state=UNREADABLE,
            generation=0,
            detail=self.error.message[:2_000],
            live=False,
            store=self.store,
            can_change=False,
        )


def job_of(pipeline: PipelineView | Unreadable) -> Job:
    """Return a pipeline's overview, also if its records cannot be read."""
    try:
        return pipeline.job()
    except CutwaterError as error:
        assert isinstance(pipeline, PipelineView)
        known = Unreadable(pipeline.name, pipeline.store.backend.url, error).job()
        return known.model_copy(
            update={"jid": pipeline.store.pipeline, "live": pipeline.live is not None}
        )


class Pipelines(Protocol):
    """The pipelines of a server."""

    def all(self) -> Sequence[PipelineView | Unreadable]:
        """Return all of them, by name.

        Raises:
            StoreError: If the store cannot be listed.
        """
        ...

    def state(self) -> str:
        """Return the state for a probe, at once and without reading the store."""
        ...

    def find(self, text: str) -> PipelineView:
        """Return the pipeline of that uuid or name.

        Raises:
            NotServed: If there is none.
            StoreError: If the store cannot be listed, or the pipeline's name cannot be read.
        """
        ...


class OnePipeline:
    """Serves the pipeline that this process runs, or will run."""

    def __init__(self, pipeline: PipelineView | None = None) -> None:
        """Serve this pipeline; None to serve none until `show` is called."""
        self._pipeline = pipeline

    def show(self, pipeline: PipelineView) -> None:
        self._pipeline = pipeline

    def state(self) -> str:
        live = None if self._pipeline is None else self._pipeline.live
        return STARTING if live is None else live.running.state

    def all(self) -> tuple[PipelineView, ...]:
        return () if self._pipeline is None else (self._pipeline,)

    def find(self, text: str) -> PipelineView:
        if self._pipeline is None:
            raise NotServed("the pipeline of this process has not started yet")
        if text not in {self._pipeline.name, self._pipeline.store.pipeline}:
            raise NotServed(f"this process runs {self._pipeline.name}, and no {text[:100]!r}")
        return self._pipeline


class StoredPipelines:
    """Serves all pipelines of a store."""

    def __init__(self, backend: Backend, token_hint: str = "") -> None:
        """Serve all pipelines of this store, also later ones."""
        self._backend = backend
        self._token_hint = token_hint
        self._lock = threading.Lock()
        self._views: dict[PipelineId, PipelineView] = {}

    def state(self) -> str:
        return SERVING

    def all(self) -> tuple[PipelineView | Unreadable, ...]:
        found = list(list_pipelines(self._backend).items())[:LISTED_MAX]
        return tuple(
            Unreadable(name, self._backend.url, pipeline)
            if isinstance(pipeline, StoreError)
            else self._of(name, pipeline)
            for name, pipeline in found
        )

    def find(self, text: str) -> PipelineView:
        with self._lock:
            known = self._views.get(PipelineId(text))
        if known is not None:
            return known
        try:
            return self._of(text, find_pipeline(self._backend, text))
        except (ConfigError, NotFound, Corrupt):
            # It may be a uuid; and records of other pipelines may be damaged.
            found = list_pipelines(self._backend)
        for name, pipeline in found.items():
            if text == name and isinstance(pipeline, StoreError):
                raise pipeline
            if text in {name, pipeline} and not isinstance(pipeline, StoreError):
                return self._of(name, pipeline)
        listed = ", ".join(list(found)[:_NAMED_MAX]) or "no pipeline at all"
        raise NotServed(f"{self._backend.url} has no {text[:100]!r}; it has {listed}")

    def _of(self, name: str, pipeline: PipelineId) -> PipelineView:
        with self._lock:
            if pipeline not in self._views:
                store = PipelineStore.of(self._backend, pipeline)
                self._views[pipeline] = PipelineView(name, store, token_hint=self._token_hint)
            return self._views[pipeline]

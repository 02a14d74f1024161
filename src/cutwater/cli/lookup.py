"""Finds a pipeline in its store, for commands that neither run it nor need Spark.

A pipeline is given by its name, its uuid, or the spec of a declarative project. A store that does
not exist is an error and is never created: the address was mistyped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cutwater.declarative.spec import SUFFIXES, find_spec, read_spec
from cutwater.errors import ConfigError
from cutwater.ids import CheckpointId
from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify
from cutwater.store.records.lease import Holding, Lease, look

LATEST: Final = "latest"


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A pipeline in its store.

    Attributes:
        lease: The lease of the process that runs it, or ran it last; None if none ever did.
        age_s: The age of the holder's last heartbeat.
        problem: Why it is unknown whether a process runs it; empty if it is known.
    """

    name: str
    store: PipelineStore
    lease: Lease | None
    holding: Holding
    age_s: int
    problem: str = ""

    @property
    def is_running(self) -> bool:
        return self.holding is Holding.HELD

    @property
    def may_run(self) -> bool:
        """Whether a process runs the pipeline, or that is unknown."""
        return self.holding in {Holding.HELD, Holding.UNKNOWN}


def name_of(pipeline: str) -> str:
    """Return the name of a pipeline that is given by the spec of its project; any other as it is.

    Only a YAML file is a spec here: a directory may have the name of a pipeline.
    """
    if Path(pipeline).suffix not in SUFFIXES:
        return pipeline
    return read_spec(find_spec(Path(pipeline))).name


def find(url: str, pipeline: str) -> FoundPipeline:
    """Open a pipeline by its name or its uuid, and read its lease."""
    backend = existing_backend(url)
    name, identity = identify(backend, pipeline)
    return look_up(name, PipelineStore.of(backend, identity))


def look_up(name: str, store: PipelineStore) -> FoundPipeline:
    """Read a pipeline's lease: does a process run it now."""
    return FoundPipeline(name, store, *look(store.backend, store.pipeline))


def checkpoint_of(found: FoundPipeline, text: str) -> CheckpointId:
    """Return the number of a decided checkpoint: by its number, a savepoint's name, or `latest`."""
    log = found.store.log.read()
    if text == LATEST and log.head is not None:
        return log.head.checkpoint_id
    if text.isdecimal():
        if any(decision.checkpoint_id == int(text) for decision in log.decisions):
            return CheckpointId(int(text))
        decided = [decision.checkpoint_id for decision in log.decisions]
        range_text = f"it has {decided[0]} to {decided[-1]}" if decided else "it has none"
        raise ConfigError("ID", f"{found.name} has no checkpoint {text}; {range_text}")
    names = found.store.savepoints.names(log)
    for checkpoint_id, name in names.items():
        if name == text:
            return checkpoint_id
    listed = ", ".join(sorted(name for name in names.values() if name)) or "none"
    raise ConfigError("NAME", f"{found.name} has no savepoint {text!r}; its savepoints: {listed}")

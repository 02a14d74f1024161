"""The pipeline and the checkpoint that a command names, found in the store that it names.

Nothing is made or changed here. What is not there is said together with what is.
"""

from typing import Final

from cutwater.cli.run import store_path
from cutwater.errors import ConfigError, NotFound
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Decision
from cutwater.store.backend import Backend
from cutwater.store.catalog import find_pipeline, list_pipelines
from cutwater.store.local import LocalBackend
from cutwater.store.opened import OpenStore

LATEST: Final = "latest"
_SHOWN: Final = 10


def open_backend(url: str) -> Backend:
    """Open the store that `--store` names, and make it if it is not there.

    Raises:
        ConfigError: If it cannot be one.
    """
    return LocalBackend(store_path(url))


def find_backend(url: str) -> Backend | None:
    """Open the store that `--store` names; None if there is none, and none is made.

    Raises:
        ConfigError: If it cannot be one.
    """
    return open_backend(url) if store_path(url).exists() else None


def find_store(url: str, pipeline: str) -> OpenStore:
    """Open a pipeline that is in a store.

    Raises:
        ConfigError: If there is none of that name; it says which there are.
    """
    backend = find_backend(url)
    if backend is None:
        raise ConfigError("--store", f"there is no store at {url}")
    try:
        return OpenStore.of(backend, find_pipeline(backend, pipeline))
    except NotFound as error:
        there = ", ".join(list_pipelines(backend)) or "none"
        reason = f"{url} has no pipeline {pipeline}; there are: {there}"
        raise ConfigError("PIPELINE", reason) from error


def find_checkpoint(store: OpenStore, text: str) -> Decision:
    """Return the decision that a number, the name of a savepoint or `latest` names.

    Raises:
        ConfigError: If there is none, or none any more; it says which there are.
    """
    kept = set(store.manifests.ids())
    decisions = [one for one in store.log.read().decisions if one.checkpoint_id in kept]
    if not decisions:
        raise ConfigError("--checkpoint", "the pipeline has no checkpoint yet")
    if text == LATEST:
        return decisions[-1]
    if text.isdecimal():
        chosen = [one for one in decisions if one.checkpoint_id == int(text)]
    else:
        saved = (one for one in decisions if one.kind is CheckpointKind.SAVEPOINT)
        chosen = [one for one in saved if _name(store, one) == text]
    if not chosen:
        ids = ", ".join(str(one.checkpoint_id) for one in decisions[-_SHOWN:])
        reason = f"there is no {text}, or it was pruned; the newest are {ids}"
        raise ConfigError("--checkpoint", reason)
    return chosen[-1]


def _name(store: OpenStore, decision: Decision) -> str | None:
    return store.manifests.read(decision.checkpoint_id, decision.manifest_sha256).name

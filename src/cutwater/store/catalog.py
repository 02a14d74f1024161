"""The pipelines of a store: a name is a label that leads to a uuid, minted once.

Everything a pipeline owns lies under its uuid, and so do its sinks' idempotence keys; the name is
only how people find it (PROTOCOL.md section 11). Two processes that open one name at once agree
on one uuid, because the name is created if absent. Upholds I8.
"""

import uuid
from collections.abc import Callable
from typing import Final

from cutwater.errors import ConfigError, NotFound, OutcomeUnknown
from cutwater.ids import PipelineId
from cutwater.store.backend import Backend
from cutwater.store.forms import NAME
from cutwater.store.paths import NAMES, label_of, name
from cutwater.store.records import decode, encode

_LISTED_MAX: Final = 20


def open_pipeline(
    backend: Backend, label: str, mint: Callable[[], uuid.UUID] = uuid.uuid4
) -> PipelineId:
    """Return the uuid of the pipeline with that name, giving it one if it is new.

    Args:
        backend: The store.
        label: The pipeline's name.
        mint: Makes a uuid that nobody else has.

    Raises:
        ConfigError: If the name is empty, too long or not text.
        Corrupt: If the name's record is damaged.
        NewerFormat: If it is of a newer Cutwater.
        Unavailable: If the store does not answer.
        OutcomeUnknown: If the name may or may not have been written; opening it again tells.
    """
    try:
        return find_pipeline(backend, label)
    except NotFound:
        path, pipeline = name(label), PipelineId(str(mint()))
    try:
        if backend.create(path, encode(NAME, path, pipeline)):
            return pipeline
    except OutcomeUnknown as unknown:
        # Whatever is there now is the pipeline's, be it ours or another process's.
        try:
            return find_pipeline(backend, label)
        except NotFound:
            raise unknown from None
    return find_pipeline(backend, label)


def find_pipeline(backend: Backend, label: str) -> PipelineId:
    """Return the uuid of the pipeline with that name.

    Raises:
        ConfigError: If the name is empty, too long or not text.
        NotFound: If no pipeline has that name.
        Corrupt: If the name's record is damaged.
        NewerFormat: If it is of a newer Cutwater.
        Unavailable: If the store does not answer.
    """
    path = name(label)
    return decode(NAME, path, backend.read(path))


def identify(backend: Backend, text: str, option: str = "PIPELINE") -> tuple[str, PipelineId]:
    """Return name and uuid of the pipeline that a person names by either.

    Raises:
        ConfigError: If the store has none; it says which it has.
        StoreError: If the store cannot be read.
    """
    try:
        return text, find_pipeline(backend, text)
    except NotFound:
        known = list_pipelines(backend)
    for label, pipeline in known.items():
        if pipeline == text:
            return label, pipeline
    listed = ", ".join(list(known)[:_LISTED_MAX]) or "no pipeline at all"
    more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
    raise ConfigError(option, f"{backend.url} has no {text!r}; it has {listed}{more}")


def list_pipelines(backend: Backend) -> dict[str, PipelineId]:
    """Return all pipelines of a store by name, sorted by name.

    Raises:
        Corrupt: If a name's record is damaged.
        NewerFormat: If one is of a newer Cutwater.
        Unavailable: If the store does not answer.
    """
    found = {label_of(path): decode(NAME, path, backend.read(path)) for path in backend.list(NAMES)}
    return dict(sorted(found.items()))

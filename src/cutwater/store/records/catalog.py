"""The pipelines of a store: a name maps to a uuid, which is created once.

Everything that a pipeline owns lies under its uuid, and its sinks' idempotence keys contain the
uuid; the name only serves to find the pipeline (PROTOCOL.md section 11). Two processes that open a
name at the same time agree on one uuid, because the name is created if absent. A second record
holds the name of each pipeline: if the first one was deleted, the name still leads to the old
pipeline, and never silently to a new one, which would read its sources from the beginning. Upholds
I8.
"""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from cutwater.errors import ConfigError, Corrupt, NotFound, OutcomeUnknown, StoreError
from cutwater.ids import PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import LABELS, NAMES, ObjectPath, label_of, name, pipeline_of_label
from cutwater.store.paths import label as label_path
from cutwater.store.records.codecs import LABEL, NAME
from cutwater.store.records.envelope import decode, encode

_LISTED_MAX: Final = 20

Value = TypeVar("Value")


def open_pipeline(
    backend: Backend, label: str, mint: Callable[[], uuid.UUID] = uuid.uuid4
) -> PipelineId:
    """Return the uuid of the pipeline with that name; create one if the pipeline is new.

    Raises:
        OutcomeUnknown: If the name may or may not have been written; opening it again shows which.
    """
    path = name(label)
    try:
        pipeline = _read(backend, path)
    except NotFound:
        pipeline = _claim_name(
            backend, label, _find_by_label(backend, label) or PipelineId(str(mint()))
        )
    # Written after the name: a pipeline without a name does not exist. If this process dies in
    # between, the next one that opens the pipeline writes it.
    remembered = label_path(pipeline)
    if not backend.exists(remembered):
        backend.create(remembered, encode(LABEL, remembered, label))
    return pipeline


def _claim_name(backend: Backend, label: str, pipeline: PipelineId) -> PipelineId:
    """Map a name to a pipeline, unless it is mapped already; return the pipeline it maps to."""
    path = name(label)
    try:
        if backend.create(path, encode(NAME, path, pipeline)):
            return pipeline
    except OutcomeUnknown as unknown:
        # The uuid that is stored now is the pipeline's, whichever process wrote it.
        try:
            return _read(backend, path)
        except NotFound:
            raise unknown from None
    return _read(backend, path)


def find_pipeline(backend: Backend, label: str) -> PipelineId:
    """Return the uuid of the pipeline with that name, even if the record of the name was deleted.

    Raises:
        NotFound: If no pipeline has, or had, that name.
        Corrupt: If the name's record is damaged, or was deleted and several pipelines had the name.
    """
    path = name(label)
    try:
        return _read(backend, path)
    except NotFound:
        found = _find_by_label(backend, label)
        if found is None:
            raise
        return found


def _read(backend: Backend, path: ObjectPath) -> PipelineId:
    return decode(NAME, path, backend.read(path))


def _find_by_label(backend: Backend, label: str) -> PipelineId | None:
    """Return the pipeline whose own record has this name; None if there is none."""
    found = sorted(pipeline for pipeline, text in _labels(backend).items() if text == label)
    if len(found) > 1:
        reason = f"it is gone, and these pipelines were called so: {', '.join(found)}"
        raise Corrupt(name(label), reason)
    return found[0] if found else None


def _labels(backend: Backend) -> dict[PipelineId, str]:
    return {
        pipeline_of_label(path): decode(LABEL, path, backend.read(path))
        for path in backend.list(LABELS)
    }


def identify(backend: Backend, text: str, option: str = "PIPELINE") -> tuple[str, PipelineId]:
    """Return name and uuid of the pipeline that a user names by either of them.

    A pipeline that is named by its uuid is found even if records of another one are damaged.

    Raises:
        ConfigError: If the store has no such pipeline; the message lists the pipelines it has.
        StoreError: If the store cannot be read, or a damaged record may be the requested one.
    """
    try:
        return text, find_pipeline(backend, text)
    except (NotFound, Corrupt) as error:
        known = list_pipelines(backend)
        for label, pipeline in known.items():
            if pipeline == text:
                return label, PipelineId(text)
        if isinstance(error, Corrupt):
            raise
    listed = ", ".join(list(known)[:_LISTED_MAX]) or "no pipeline at all"
    more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
    raise ConfigError(option, f"{backend.url} has no {text!r}; it has {listed}{more}")


def list_pipelines(backend: Backend) -> dict[str, PipelineId | StoreError]:
    """Return all pipelines of a store by name, sorted; an error for each that cannot be read.

    A pipeline whose own record of its name is damaged, and that no name maps to, is listed by its
    uuid.
    """
    found: dict[str, PipelineId | StoreError] = {}
    for path in backend.list(NAMES):
        found[label_of(path)] = _read_or_error(partial(_read, backend, path))
    for path in backend.list(LABELS):
        pipeline = pipeline_of_label(path)
        if pipeline not in found.values():
            text = _read_or_error(partial(_read_label, backend, path))
            label = pipeline if isinstance(text, StoreError) else text
            found.setdefault(label, text if isinstance(text, StoreError) else pipeline)
    return dict(sorted(found.items()))


def _read_label(backend: Backend, path: ObjectPath) -> str:
    return decode(LABEL, path, backend.read(path))


def _read_or_error(read: Callable[[], Value]) -> Value | StoreError:
    try:
        return read()
    except StoreError as error:
        return error

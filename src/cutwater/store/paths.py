"""The names of all objects in a store: the one module that formats and parses them.

    names/<label>                                  the uuid of the pipeline with that name
    labels/<uuid>                                  the pipeline's name, in case `names` loses it
    probes/<token>                                 written and deleted when a store is opened
    pipelines/<uuid>/log/<slot>                    the decision log
    pipelines/<uuid>/volumes/<slot>                entries of the log up to a slot, to read faster
    pipelines/<uuid>/manifests/<id>                what a cut consists of
    pipelines/<uuid>/attempts/<id>                 which process reserved an attempt's number
    pipelines/<uuid>/committed/<slot>              what the sinks made visible
    pipelines/<uuid>/blobs/<generation>/<sha256>   state and in-flight data
    pipelines/<uuid>/staged/<generation>/<sink>/<batch>/<file>
    pipelines/<uuid>/targets/<generation>          where a generation's sinks write
    pipelines/<uuid>/starts/<id>/<step>/<line>-<key>
                                                   where a source began that no cut covers yet
    pipelines/<uuid>/origin/cut                    of a fork: where it comes from
    pipelines/<uuid>/lease/heartbeat               which process runs it; replaced all the time
    pipelines/<uuid>/lease/address                 the address of its API; may be lost
    pipelines/<uuid>/dropped/<id>                  cuts that their owner has dropped
    pipelines/<uuid>/reports/<id>                  the report of an attempt; may be lost
    pipelines/<uuid>/recoveries/<generation>       the report of a recovery; may be lost
    pipelines/<uuid>/requests/<token>.asked        a request to the running process
    pipelines/<uuid>/requests/<token>.answer       its answer; replaced when the state changes

Paths are relative to the store. Numbers have twelve digits, so that names sort like numbers. Names
that a user chose are percent-encoded. A part that begins with a dot belongs to the backend.
PROTOCOL.md section 9 has the order in which objects are written. Upholds I8.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType
from urllib.parse import quote, unquote

from cutwater.errors import ConfigError, Corrupt, InvalidPath
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot, StepId

ObjectPath = NewType("ObjectPath", str)
"""The path of an object in its store, or a prefix of whole parts; minted by this module."""

PATH_LENGTH_MAX: Final = 800
"""Object stores allow 1,024 bytes, and the store's own prefix uses some of them."""

PART_LENGTH_MAX: Final = 255

_PART: Final = re.compile(r"[A-Za-z0-9_~%=+-][A-Za-z0-9._~%=+-]*")
_NUMBER: Final = re.compile(r"[0-9]{12}|[1-9][0-9]{12,}")


def object_path(text: str) -> ObjectPath:
    """Check that a text is a path every backend can hold.

    Raises:
        InvalidPath: If the text is absolute, empty or too long, or if a part of it is empty,
            begins with a dot (as `.` and `..` do), or has a character other than letters, digits
            and `._~%=+-`.
    """
    if len(text) > PATH_LENGTH_MAX:
        raise InvalidPath(text, f"a path has at most {PATH_LENGTH_MAX} characters")
    for part in text.split("/"):
        if len(part) > PART_LENGTH_MAX:
            raise InvalidPath(text, f"a part of a path has at most {PART_LENGTH_MAX} characters")
        if not _PART.fullmatch(part):
            raise InvalidPath(text, f"{part!r} cannot be a part of a path")
    return ObjectPath(text)


NAMES: Final = object_path("names")
"""The prefix of all pipeline names."""


def name(text: str) -> ObjectPath:
    """Return the path of the object that maps a pipeline's name to its uuid."""
    return _join(NAMES, _quote(text, "pipeline name"))


def label_of(path: ObjectPath) -> str:
    return unquote(path.removeprefix(f"{NAMES}/"))


LABELS: Final = object_path("labels")
"""The prefix of all records of pipeline names."""


def label(pipeline: PipelineId) -> ObjectPath:
    return _join(LABELS, pipeline)


def pipeline_of_label(path: ObjectPath) -> PipelineId:
    return PipelineId(path.removeprefix(f"{LABELS}/"))


PROBES: Final = object_path("probes")
"""The prefix of the objects that start-up probes write."""


def probe_object(token: str) -> ObjectPath:
    """Return the path that one start-up probe writes to; the token makes it unique."""
    return _join(PROBES, token)


class _Area(StrEnum):
    LOG = "log"
    LOG_SEGMENTS = "volumes"
    MANIFESTS = "manifests"
    ATTEMPTS = "attempts"
    COMMITTED = "committed"
    BLOBS = "blobs"
    STAGED = "staged"
    LEASE = "lease"
    DROPPED = "dropped"
    REPORTS = "reports"
    RECOVERIES = "recoveries"
    REQUESTS = "requests"
    TARGETS = "targets"
    ORIGIN = "origin"
    STARTS = "starts"


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """All paths of one pipeline; a property is an object that there is once, or a prefix.

    The methods that parse a path raise `Corrupt` for a name that this class never creates.
    """

    pipeline: PipelineId

    def _under(self, area: _Area, *parts: str) -> ObjectPath:
        return _join("pipelines", self.pipeline, area, *parts)

    def _number(self, area: _Area, path: ObjectPath, depth: int = 1) -> int:
        parts = path.removeprefix(f"{self._under(area)}/").split("/")
        if len(parts) != depth or not _NUMBER.fullmatch(parts[0]):
            raise Corrupt(path, f"this is no name of an object under {self._under(area)}")
        return int(parts[0])

    # -- the decision log

    @property
    def log_entries(self) -> ObjectPath:
        return self._under(_Area.LOG)

    def log_entry(self, slot: Slot) -> ObjectPath:
        return self._under(_Area.LOG, _digits(slot))

    def slot_of_log_entry(self, path: ObjectPath) -> Slot:
        return Slot(self._number(_Area.LOG, path))

    @property
    def log_segments(self) -> ObjectPath:
        """The prefix of the segments, copies of many entries of the log in one object each."""
        return self._under(_Area.LOG_SEGMENTS)

    def log_segment(self, last: Slot) -> ObjectPath:
        return self._under(_Area.LOG_SEGMENTS, _digits(last))

    def slot_of_log_segment(self, path: ObjectPath) -> Slot:
        """Return the last slot of a segment."""
        return Slot(self._number(_Area.LOG_SEGMENTS, path))

    # -- manifests

    @property
    def manifests(self) -> ObjectPath:
        return self._under(_Area.MANIFESTS)

    def manifest(self, checkpoint_id: CheckpointId) -> ObjectPath:
        return self._under(_Area.MANIFESTS, _digits(checkpoint_id))

    def id_of_manifest(self, path: ObjectPath) -> CheckpointId:
        return CheckpointId(self._number(_Area.MANIFESTS, path))

    # -- attempts

    @property
    def attempts(self) -> ObjectPath:
        return self._under(_Area.ATTEMPTS)

    def attempt(self, checkpoint_id: CheckpointId) -> ObjectPath:
        """It reserves the attempt's number."""
        return self._under(_Area.ATTEMPTS, _digits(checkpoint_id))

    def id_of_attempt(self, path: ObjectPath) -> CheckpointId:
        return CheckpointId(self._number(_Area.ATTEMPTS, path))

    # -- commits

    @property
    def commits(self) -> ObjectPath:
        return self._under(_Area.COMMITTED)

    def committed(self, slot: Slot) -> ObjectPath:
        return self._under(_Area.COMMITTED, _digits(slot))

    def slot_of_commit(self, path: ObjectPath) -> Slot:
        return Slot(self._number(_Area.COMMITTED, path))

    # -- data

    @property
    def blobs(self) -> ObjectPath:
        return self._under(_Area.BLOBS)

    def blob(
        self, generation: Generation, sha256: str, attempt: CheckpointId | None = None
    ) -> ObjectPath:
        """Return the path under which an attempt of a generation stores content with that hash.

        Generation and attempt are part of the name (docs/adr/0004, docs/adr/0039). There is no
        attempt in a new pipeline, whose first cut is written before anything can be deleted.
        """
        name = sha256 if attempt is None else f"{_digits(attempt)}-{sha256}"
        return self._under(_Area.BLOBS, _digits(generation), name)

    def generation_of_blob(self, path: ObjectPath) -> Generation:
        return Generation(self._number(_Area.BLOBS, path, depth=2))

    @property
    def staged_files(self) -> ObjectPath:
        return self._under(_Area.STAGED)

    def staged_file(
        self, generation: Generation, sink: SinkId, batch: BatchId, file: str
    ) -> ObjectPath:
        """Return the path at which a sink's writer stages one file of one batch."""
        parts = (_digits(generation), _quote(sink, "sink"), _digits(batch), _quote(file, "file"))
        return self._under(_Area.STAGED, *parts)

    def generation_of_staged_file(self, path: ObjectPath) -> Generation:
        return Generation(self._number(_Area.STAGED, path, depth=4))

    # -- sinks' targets, and where a fork comes from

    @property
    def all_targets(self) -> ObjectPath:
        return self._under(_Area.TARGETS)

    def targets(self, generation: Generation) -> ObjectPath:
        return self._under(_Area.TARGETS, _digits(generation))

    def generation_of_targets(self, path: ObjectPath) -> Generation:
        return Generation(self._number(_Area.TARGETS, path))

    @property
    def origin(self) -> ObjectPath:
        return self._under(_Area.ORIGIN, "cut")

    # -- the lease

    @property
    def heartbeat(self) -> ObjectPath:
        """The heartbeat of the process that runs the pipeline. Mutable."""
        return self._under(_Area.LEASE, "heartbeat")

    @property
    def address(self) -> ObjectPath:
        """The address of that process's API. Mutable."""
        return self._under(_Area.LEASE, "address")

    # -- dropped cuts

    @property
    def all_dropped(self) -> ObjectPath:
        return self._under(_Area.DROPPED)

    def dropped(self, checkpoint_id: CheckpointId) -> ObjectPath:
        return self._under(_Area.DROPPED, _digits(checkpoint_id))

    def id_of_dropped(self, path: ObjectPath) -> CheckpointId:
        return CheckpointId(self._number(_Area.DROPPED, path))

    # -- reports

    @property
    def reports(self) -> ObjectPath:
        return self._under(_Area.REPORTS)

    def report(self, checkpoint_id: CheckpointId) -> ObjectPath:
        return self._under(_Area.REPORTS, _digits(checkpoint_id))

    @property
    def recoveries(self) -> ObjectPath:
        return self._under(_Area.RECOVERIES)

    def recovery(self, generation: Generation) -> ObjectPath:
        return self._under(_Area.RECOVERIES, _digits(generation))

    def generation_of_recovery(self, path: ObjectPath) -> Generation:
        return Generation(self._number(_Area.RECOVERIES, path))

    # -- starts of sources

    def start(self, origin: CheckpointId, step: StepId, line: int, key: str) -> ObjectPath:
        name = f"{_digits(line)}-{key}"
        return self._under(_Area.STARTS, _digits(origin), _quote(step, "step"), name)

    # -- requests

    @property
    def requests(self) -> ObjectPath:
        return self._under(_Area.REQUESTS)

    def asked(self, token: str) -> ObjectPath:
        return self._under(_Area.REQUESTS, f"{token}.asked")

    def answer(self, token: str) -> ObjectPath:
        """Mutable."""
        return self._under(_Area.REQUESTS, f"{token}.answer")

    def token_of(self, path: ObjectPath) -> str:
        return path.removeprefix(f"{self.requests}/").partition(".")[0]


def _join(*parts: str) -> ObjectPath:
    return object_path("/".join(parts))


def _digits(number: int) -> str:
    if number < 0:
        raise InvalidPath(str(number), "a number in a path is not negative")
    return f"{number:012d}"


def _quote(text: str, option: str) -> str:
    try:
        part = quote(text, safe="")
    except UnicodeEncodeError as error:
        raise ConfigError(option, f"{text!r} is not text") from error
    # `quote` keeps a dot as it is, and a leading dot would hide the object.
    part = f"%2E{part[1:]}" if part.startswith(".") else part
    if not 1 <= len(part) <= PART_LENGTH_MAX:
        raise ConfigError(
            option, f"{text!r} has {len(part)} characters as a path, 1 to {PART_LENGTH_MAX} fit"
        )
    return part

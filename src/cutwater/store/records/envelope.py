"""The envelope of stored records: versioned, checksummed, the same bytes for the same value.

    {"sha256":"<hash of the record>","record":{"format":1,"kind":…,"object":<path>,"value":…}}

The hash covers every byte between `"record":` and the last brace; the rest of the object is
compared byte by byte, so that every flipped bit is detected. A record contains the name of its
object, so that a record copied to another name is detected too. JSON is canonical: keys sorted, no
blanks. Objects are human-readable and can be read with any JSON tool; `codecs` and the modules of
the records define the values. Every released format stays readable. Upholds I7.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import msgspec

from cutwater.errors import Corrupt, NewerFormat, NotFound
from cutwater.ids import PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import ObjectPath, PipelinePaths

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT: Final = 1
"""The format that is written, and the newest one that is read."""

Value = TypeVar("Value")
Form = TypeVar("Form")

_OPENING: Final = b'{"sha256":"'
_MIDDLE: Final = b'","record":'
_CLOSING: Final = b"}\n"
_HASH_END: Final = len(_OPENING) + 64
_BODY_START: Final = _HASH_END + len(_MIDDLE)

# Called for types that msgspec does not know: any other mapping is written as a dict.
_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=dict)


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[Value, Form]):
    """One kind of record: how its value is encoded and decoded.

    Attributes:
        pack: Converts a value to its form: plain data that JSON can hold.
        unpack: Converts a form back to the value; raises `ValueError` if the form is invalid.
    """

    name: str
    pack: Callable[[Value], Form]
    decoder: msgspec.json.Decoder[Form]
    unpack: Callable[[Form], Value]


class PipelineRecords:
    """The records of one kind, or of a few, of one pipeline.

    Unless a subclass says otherwise, every method that reads raises `Corrupt` for a damaged record
    or an unknown object among the records, `NewerFormat` for a record of a newer Cutwater, and
    `Unavailable` if the store does not answer. Every method that writes raises `Unavailable` if the
    record was certainly not written, and `OutcomeUnknown` if it may or may not have been written.
    """

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def _read(self, kind: RecordKind[Value, Form], path: ObjectPath) -> Value:
        return decode(kind, path, self._backend.read(path))

    def _read_if_usable(self, kind: RecordKind[Value, Form], path: ObjectPath) -> Value | None:
        """Read a record; None if it is missing, damaged or of a newer Cutwater."""
        try:
            return self._read(kind, path)
        except (NotFound, Corrupt, NewerFormat):
            return None


def plain_record(name: str, value: type[Value]) -> RecordKind[Value, Value]:
    """Return a kind of record whose values are stored field by field, under their own names."""
    return RecordKind(name, _unchanged, msgspec.json.Decoder(value), _unchanged)


def _unchanged(value: Value) -> Value:
    return value


def fields_of(value: "DataclassInstance") -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


class _Version(msgspec.Struct, frozen=True):
    """The part of a record that is the same in every format."""

    format: int


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=1)]
    kind: str
    object: str
    value: msgspec.Raw


_VERSIONS: Final = msgspec.json.Decoder(_Version)
_RECORDS: Final = msgspec.json.Decoder(_Record)


def digest(data: bytes) -> str:
    """Return the SHA-256, as decisions and manifests name it."""
    return hashlib.sha256(data).hexdigest()


def encode(kind: RecordKind[Value, Any], path: ObjectPath, value: Value) -> bytes:
    """Return the bytes of a record. The same value at the same path gives the same bytes."""
    raw = msgspec.Raw(_ENCODER.encode(kind.pack(value)))
    body = _ENCODER.encode(_Record(FORMAT, kind.name, path, raw))
    return b"".join((_OPENING, digest(body).encode(), _MIDDLE, body, _CLOSING))


def decode(kind: RecordKind[Value, Any], path: ObjectPath, data: bytes) -> Value:
    """Return the value of a record.

    Raises:
        Corrupt: If a byte has changed, or the record has another kind or path.
        NewerFormat: If the record is intact, but of a format that this version does not know.
    """
    body = _checked_body(path, data)
    try:
        version = _VERSIONS.decode(body).format
        if version > FORMAT:
            raise NewerFormat(path, version, FORMAT)
        record = _RECORDS.decode(body)
        if record.object != path:
            raise Corrupt(path, f"this is the record that was written as {record.object}")
        if record.kind != kind.name:
            raise Corrupt(path, f"this is a record of kind {record.kind}, not {kind.name}")
        value = kind.unpack(kind.decoder.decode(record.value))
    except ValueError as error:
        raise Corrupt(path, f"the record makes no sense: {error}") from error
    return value


def _checked_body(path: ObjectPath, data: bytes) -> bytes:
    body = data[_BODY_START : -len(_CLOSING)]
    hashed = digest(body).encode()
    if data != b"".join((_OPENING, hashed, _MIDDLE, body, _CLOSING)):
        raise Corrupt(path, f"its {len(data)} bytes are not those that were written")
    return body

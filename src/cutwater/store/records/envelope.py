"""What stored bytes mean: versioned, checksummed records, the same bytes for the same value.

    {"sha256":"<hash of the record>","record":{"format":1,"kind":…,"object":<path>,"value":…}}

The hash covers every byte between `"record":` and the last brace; the rest of the object is
compared byte by byte, so that no flipped bit goes unnoticed. A record names the object it was
written as, so that one copied to another name is noticed too. JSON is canonical: keys sorted, no
blanks. Objects can be read by a person, or with any JSON tool; `codecs` and the modules of the
records say what values look like. A format that was once released is read for ever. Upholds I7.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import msgspec

from cutwater.errors import Corrupt, NewerFormat
from cutwater.store.paths import ObjectPath

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

# Called for what msgspec does not know: a mapping of another kind is written as a dict is.
_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=dict)


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[Value, Form]):
    """One kind of record: how its value is laid out, and how it is taken apart again.

    Attributes:
        name: What the record says it is.
        pack: Turns a value into its form: plain data that JSON has.
        decoder: Reads a form and checks its types.
        unpack: Turns a form back into the value; raises `ValueError` if it means nothing.
    """

    name: str
    pack: Callable[[Value], Form]
    decoder: msgspec.json.Decoder[Form]
    unpack: Callable[[Form], Value]


def plain_record(name: str, value: type[Value]) -> RecordKind[Value, Value]:
    """Return a kind of record whose values are stored field by field, under their own names."""
    return RecordKind(name, _unchanged, msgspec.json.Decoder(value), _unchanged)


def _unchanged(value: Value) -> Value:
    return value


def fields_of(value: "DataclassInstance") -> dict[str, Any]:
    """Return the fields of a dataclass by name, as they are."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


class _Version(msgspec.Struct, frozen=True):
    """All that may be asked of a record of any format."""

    format: int


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=1)]
    kind: str
    object: str
    value: msgspec.Raw


_VERSIONS: Final = msgspec.json.Decoder(_Version)
_RECORDS: Final = msgspec.json.Decoder(_Record)


def digest(data: bytes) -> str:
    """Return the SHA-256 of an object, as decisions and manifests name it."""
    return hashlib.sha256(data).hexdigest()


def encode(kind: RecordKind[Value, Any], path: ObjectPath, value: Value) -> bytes:
    """Return the bytes of a record. The same value at the same path always gives the same.

    Args:
        kind: What it is.
        path: The object it will be.
        value: What it says.
    """
    raw = msgspec.Raw(_ENCODER.encode(kind.pack(value)))
    body = _ENCODER.encode(_Record(FORMAT, kind.name, path, raw))
    return b"".join((_OPENING, digest(body).encode(), _MIDDLE, body, _CLOSING))


def decode(kind: RecordKind[Value, Any], path: ObjectPath, data: bytes) -> Value:
    """Return what a record says.

    Args:
        kind: What it must be.
        path: The object it was read from.
        data: The object's content.

    Raises:
        Corrupt: If a byte has changed, or it is another record than was asked for.
        NewerFormat: If it is whole, but of a format that this version does not know.
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

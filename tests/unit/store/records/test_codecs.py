"""Records: exact round trips, the same bytes every time, and no changed byte goes unnoticed."""

import hashlib
import json
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store import cuts
from tests.unit.store.cuts import STEADY

from cutwater.errors import Corrupt, NewerFormat
from cutwater.ids import PipelineId
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import LogEntry
from cutwater.protocol.step.aligner_events import Cause
from cutwater.store.paths import ObjectPath
from cutwater.store.records.codecs import (
    ATTEMPT,
    COMMITTED,
    LOG_ENTRY,
    NAME,
    Attempt,
    Committed,
)
from cutwater.store.records.envelope import RecordKind, decode, digest, encode
from cutwater.store.records.manifests import MANIFEST

PATH = ObjectPath("pipelines/p/log/000000000001")
AnyKind = RecordKind[Any, Any]

SAMPLES: list[tuple[AnyKind, object]] = [
    (LOG_ENTRY, cuts.sample_claim()),
    (LOG_ENTRY, cuts.sample_decision()),
    (MANIFEST, cuts.sample_cut()),
    (ATTEMPT, cuts.sample_attempt()),
    (COMMITTED, cuts.sample_committed()),
    (NAME, cuts.PIPELINE),
]

# -- round trips


@STEADY
@given(cuts.cuts)
def test_a_cut_is_read_as_it_was_written(cut: Cut) -> None:
    assert decode(MANIFEST, PATH, encode(MANIFEST, PATH, cut)) == cut


@STEADY
@given(cuts.entries)
def test_a_log_entry_is_read_as_it_was_written(entry: LogEntry) -> None:
    assert decode(LOG_ENTRY, PATH, encode(LOG_ENTRY, PATH, entry)) == entry


@STEADY
@given(cuts.attempts)
def test_an_attempt_is_read_as_it_was_written(attempt: Attempt) -> None:
    assert decode(ATTEMPT, PATH, encode(ATTEMPT, PATH, attempt)) == attempt


@STEADY
@given(cuts.commits)
def test_a_commit_is_read_as_it_was_written(committed: Committed) -> None:
    assert decode(COMMITTED, PATH, encode(COMMITTED, PATH, committed)) == committed


@STEADY
@given(cuts.names.map(PipelineId))
def test_a_name_is_read_as_it_was_written(pipeline: PipelineId) -> None:
    assert decode(NAME, PATH, encode(NAME, PATH, pipeline)) == pipeline


def test_the_types_of_a_cut_survive_being_written() -> None:
    cut = decode(MANIFEST, PATH, encode(MANIFEST, PATH, cuts.sample_cut()))

    assert repr(cut.snapshots[cuts.TOTALS].positions) == repr(
        cuts.sample_cut().snapshots[cuts.TOTALS].positions
    )
    assert repr(cut.snapshots[cuts.TOTALS].in_flight) == repr(
        cuts.sample_cut().snapshots[cuts.TOTALS].in_flight
    )
    assert cut.kind is CheckpointKind.REWIND


# -- the same bytes


def test_the_order_of_a_mapping_does_not_show_in_the_bytes() -> None:
    cut = cuts.sample_cut()
    snapshots = dict(reversed(list(cut.snapshots.items())))
    visible = dict(reversed(list(cut.visible.items())))

    other = replace(cut, snapshots=snapshots, visible=visible)

    assert encode(MANIFEST, PATH, other) == encode(MANIFEST, PATH, cut)


@pytest.mark.parametrize(("kind", "value"), SAMPLES)
def test_a_record_is_json_that_names_its_format_kind_and_object(
    kind: AnyKind, value: object
) -> None:
    data = encode(kind, PATH, value)

    parsed = json.loads(data)

    assert list(parsed) == ["sha256", "record"]
    assert (parsed["record"]["format"], parsed["record"]["kind"]) == (1, kind.name)
    assert parsed["record"]["object"] == PATH
    assert data.endswith(b"}\n")


def test_a_digest_is_the_sha256_of_the_whole_object() -> None:
    assert digest(b"object") == hashlib.sha256(b"object").hexdigest()


@pytest.mark.parametrize("stored", [CheckpointKind, Cause])
def test_every_member_of_an_enum_is_stored_by_its_name(stored: type[Enum]) -> None:
    assert [member.value for member in stored] == [member.name.lower() for member in stored]


def test_any_kind_of_mapping_is_stored_as_a_dict_is() -> None:
    committed = cuts.sample_committed()
    other = replace(committed, versions=MappingProxyType(dict(committed.versions)))

    assert encode(COMMITTED, PATH, other) == encode(COMMITTED, PATH, committed)


def test_a_value_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError):
        encode(COMMITTED, PATH, replace(cuts.sample_committed(), versions=cast(Any, object())))


# -- damage


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize(("kind", "value"), SAMPLES)
def test_no_flipped_bit_goes_unnoticed(kind: AnyKind, value: object, bit: int) -> None:
    data = encode(kind, PATH, value)

    unnoticed = [place for place in range(len(data)) if reads(kind, flipped(data, place, bit))]

    assert unnoticed == []


@pytest.mark.parametrize(("kind", "value"), SAMPLES)
def test_no_truncation_goes_unnoticed(kind: AnyKind, value: object) -> None:
    data = encode(kind, PATH, value)

    assert [size for size in range(len(data)) if reads(kind, data[:size])] == []


@STEADY
@given(st.data())
def test_no_change_of_a_record_goes_unnoticed(chance: st.DataObject) -> None:
    data = encode(MANIFEST, PATH, chance.draw(cuts.cuts))
    start = chance.draw(st.integers(0, len(data)))
    end = chance.draw(st.integers(start, len(data)))
    damaged = data[:start] + chance.draw(st.binary(max_size=8)) + data[end:]

    assert damaged == data or not reads(MANIFEST, damaged)


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def reads(kind: AnyKind, data: bytes) -> bool:
    """Say whether bytes are taken for a record; only `Corrupt`, with its path, says no."""
    try:
        decode(kind, PATH, data)
    except Corrupt as error:
        return error.path != PATH
    return True


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 200, b'{"sha256":"","record":{}}\n'])
def test_what_never_was_a_record_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=PATH):
        decode(NAME, PATH, data)


def test_a_record_under_another_name_is_corrupt_and_says_where_it_belongs() -> None:
    data = encode(LOG_ENTRY, PATH, cuts.sample_claim())

    with pytest.raises(Corrupt, match=PATH):
        decode(LOG_ENTRY, ObjectPath("pipelines/q/log/000000000001"), data)


def test_a_record_of_another_kind_is_corrupt() -> None:
    data = encode(NAME, PATH, cuts.PIPELINE)

    with pytest.raises(Corrupt, match="kind name, not manifest"):
        decode(MANIFEST, PATH, data)


# -- other formats


def sealed(body: bytes) -> bytes:
    """What a writer of any format would store around a body."""
    return b'{"sha256":"' + digest(body).encode() + b'","record":' + body + b"}\n"


def test_a_record_of_a_newer_format_is_refused_by_name() -> None:
    data = sealed(b'{"format":2,"kind":["something","new"]}')

    with pytest.raises(NewerFormat, match=PATH) as refused:
        decode(NAME, PATH, data)

    assert (refused.value.found, refused.value.supported) == (2, 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"kind":"name"}',
        b'{"format":"1"}',
        b'{"format":0,"kind":"name","object":"%s","value":{"pipeline":"p"}}' % PATH.encode(),
        b'{"format":1,"kind":"name","object":"%s"}' % PATH.encode(),
        b'{"format":1,"kind":"name","object":"%s","value":{}}' % PATH.encode(),
        b'{"format":1,"kind":"name","object":"%s","value":{"pipeline":7}}' % PATH.encode(),
        b'{"format":1,"kind":"name","object":"%s","value":{"pipeline":"p"},"x":1}' % PATH.encode(),
    ],
)
def test_a_whole_record_that_makes_no_sense_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt, match=PATH):
        decode(NAME, PATH, sealed(body))


def test_an_input_without_a_number_is_corrupt() -> None:
    whole = encode(MANIFEST, PATH, cuts.sample_cut())
    body = whole[len(b'{"sha256":"","record":') + 64 : -2]

    with pytest.raises(Corrupt, match="makes no sense"):
        decode(MANIFEST, PATH, sealed(body.replace(b'"0:orders"', b'"x:orders"')))

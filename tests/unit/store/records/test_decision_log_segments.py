"""A long log compacted into segments: read in few requests, and right whatever becomes of one."""

import pytest
from tests.unit.store.cuts import PIPELINE, sample_claim, sample_decision
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Corrupt, Unavailable
from cutwater.ids import NO_SLOT, Slot
from cutwater.protocol.decisions import DecisionOutcome, LogEntry, LogView
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records import decision_log
from cutwater.store.records.decision_log import (
    SEGMENT,
    SEGMENT_ENTRIES,
    DecisionLog,
    LogSegments,
    recent,
)
from cutwater.store.records.envelope import encode

PATHS = PipelinePaths(PIPELINE)
THREE = 3


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


def opened(backend: FaultyBackend) -> DecisionLog:
    return DecisionLog(backend, PIPELINE, LogSegments(backend, PIPELINE, THREE))


def written(backend: FaultyBackend, count: int) -> LogView:
    """A log of that many entries, compacted as far as it goes."""
    log = opened(backend)
    for slot in range(1, count + 1):
        entry: LogEntry = sample_claim(slot, nonce=f"{slot}")
        if slot % 2 == 0:
            entry = sample_decision(slot, nonce=f"{slot}")
        assert log.create(entry) is DecisionOutcome.WRITTEN
    view = log.read()
    log.compact()
    return view


def test_a_compacted_log_is_read_by_its_segments_and_its_end(backend: FaultyBackend) -> None:
    whole = written(backend, 8)
    assert backend.list(PATHS.log_segments) == (
        PATHS.log_segment(Slot(3)),
        PATHS.log_segment(Slot(6)),
    )
    backend.reads.clear()

    assert opened(backend).read() == whole
    assert sorted(backend.reads) == [
        *(PATHS.log_entry(Slot(number)) for number in (7, 8, 9)),
        *(PATHS.log_segment(Slot(number)) for number in (3, 6)),
    ]


def test_what_is_compacted_is_not_compacted_again(backend: FaultyBackend) -> None:
    written(backend, 8)
    log = opened(backend)
    log.compact()
    log.read()
    backend.before_create.append(Unavailable(PATHS.log_segments, "writing is not allowed"))

    log.compact()


def test_a_log_continues_after_its_segments(backend: FaultyBackend) -> None:
    whole = written(backend, 6)
    log = opened(backend)

    assert log.create(sample_claim(7, nonce="7")) is DecisionOutcome.WRITTEN
    log.read()
    log.create(sample_claim(8, nonce="8"))
    log.create(sample_claim(9, nonce="9"))
    log.read()
    log.compact()

    assert len(opened(backend).read().entries) == len(whole.entries) + 3
    assert PATHS.log_segment(Slot(9)) in backend.list(PATHS.log_segments)


@pytest.mark.parametrize("at", [3, 6, 9])
@pytest.mark.parametrize("damage", ["gone", "flipped", "another", "empty", "newer"])
def test_a_segment_that_is_of_no_use_costs_only_time(
    backend: FaultyBackend, at: int, damage: str
) -> None:
    whole = written(backend, 10)
    path = PATHS.log_segment(Slot(at))
    data = backend.read(path)
    backend.delete(path)
    if damage == "flipped":
        backend.put(path, data[:-9] + b"X" + data[-8:])
    elif damage == "another":
        backend.put(path, encode(SEGMENT, path, whole.entries[:2]))
    elif damage == "empty":
        backend.put(path, encode(SEGMENT, path, ()))
    elif damage == "newer":
        backend.put(path, b"of another time")

    assert opened(backend).read() == whole


def test_a_slot_that_is_missing_after_the_segments_is_noticed(backend: FaultyBackend) -> None:
    written(backend, 8)
    backend.delete(PATHS.log_entry(Slot(7)))

    with pytest.raises(Corrupt, match="the slot is empty, but the log continues to slot 8"):
        opened(backend).read()


def test_a_slot_that_is_compacted_may_be_missing(backend: FaultyBackend) -> None:
    """Its segment is a checked copy of it."""
    whole = written(backend, 8)
    backend.delete(PATHS.log_entry(Slot(2)))

    assert opened(backend).read() == whole


def test_an_old_log_is_compacted_a_few_segments_at_a_time(
    backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "COMPACTED_AT_ONCE_MAX", 1)
    written(backend, 7)
    log = opened(backend)
    log.read()

    assert len(backend.list(PATHS.log_segments)) == 1
    log.compact()
    assert len(backend.list(PATHS.log_segments)) == 2


def test_a_log_of_one_segment_holds_everything_about_it() -> None:
    assert recent(Slot(1)) == NO_SLOT
    assert recent(Slot(SEGMENT_ENTRIES + 4)) == 4
    assert PATHS.slot_of_log_segment(ObjectPath(PATHS.log_segment(Slot(7)))) == 7

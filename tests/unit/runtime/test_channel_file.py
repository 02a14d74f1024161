"""The framed log of a channel: whole entries only, segments dropped from the front."""

from pathlib import Path

import pytest

from cutwater.errors import Corrupt
from cutwater.ids import BatchId, CheckpointId, Generation
from cutwater.protocol.messages import (
    BARRIER_BYTES,
    START,
    Barrier,
    EndOfInput,
    Event,
    Flag,
    Place,
    Watermark,
)
from cutwater.runtime import channel_file
from cutwater.runtime.channel_file import ChannelFile, framed, payloads, read_entries

DRAINING_SAVEPOINT = Flag.FULL_SNAPSHOT | Flag.DRAIN


def test_payloads_come_back_in_order() -> None:
    data = framed(b"one") + framed(b"") + framed(b"three" * 1000)

    assert list(payloads(data, "log")) == [b"one", b"", b"three" * 1000]


@pytest.mark.parametrize("missing", range(1, len(framed(b"second"))))
def test_half_an_entry_is_not_there_yet(missing: int) -> None:
    data = framed(b"first") + framed(b"second")

    assert list(payloads(data[:-missing], "log")) == [b"first"]


def test_a_complete_entry_with_a_flipped_bit_is_an_error() -> None:
    data = bytearray(framed(b"first") + framed(b"second"))
    data[-1] ^= 1

    entries = payloads(bytes(data), "log")
    assert next(entries) == b"first"
    with pytest.raises(Corrupt, match="log: the entry at byte 13 has another checksum"):
        next(entries)


def test_every_message_is_written_with_the_end_after_it(tmp_path: Path) -> None:
    log = ChannelFile(tmp_path)
    end = Place(1, 40)
    log.append(end, Event(BatchId(0), 3, 40, ("b0/part.parquet",)))
    log.append(end, Watermark(77))
    log.append(end, Barrier(CheckpointId(5), Generation(2)))
    log.append(end, EndOfInput())
    log.close()

    assert [set(entry) - {"end"} for entry in read_entries(tmp_path)] == [
        {"event", "rows", "bytes", "files"},
        {"watermark_ms"},
        {"barrier", "generation", "flags", "started_at_ms"},
        {"end_of_input"},
    ]
    assert {entry["end"] for entry in read_entries(tmp_path)} == {1}


@pytest.mark.parametrize("flags", [Flag.NONE, Flag.CANCEL, Flag.UNALIGNED, DRAINING_SAVEPOINT])
def test_a_barrier_is_written_in_its_packed_form_and_read_back_whole(
    tmp_path: Path, flags: Flag
) -> None:
    barrier = Barrier(CheckpointId(2**63), Generation(7), flags, 1_700_000_000_000)
    log = ChannelFile(tmp_path)
    log.append(Place(9, 40), barrier)
    log.close()

    (path,) = tmp_path.iterdir()
    (payload,) = payloads(path.read_bytes(), path.name)
    assert payload[-BARRIER_BYTES:] == barrier.pack()
    assert read_entries(tmp_path) == [
        {
            "end": 9,
            "barrier": 2**63,
            "generation": 7,
            "flags": str(flags),
            "started_at_ms": 1_700_000_000_000,
        }
    ]


@pytest.mark.parametrize("payload", [b"", b"\x00" * 40, b"\x00" * 41, b"{"])
def test_an_entry_that_is_no_message_is_an_error(tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "00000000.log").write_bytes(framed(payload))

    with pytest.raises(Corrupt, match=r"00000000\.log: an entry is no message"):
        read_entries(tmp_path)


def test_segments_that_no_reader_needs_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_file, "SEGMENT_ENTRIES", 10)
    log = ChannelFile(tmp_path)
    end = START
    for batch in range(100):
        end = end.after(1)
        log.append(end, Event(BatchId(batch), 1, 1, (f"b{batch}",)))
        log.free(Place(max(0, batch - 5), 0), 0)
    log.close()

    assert len(list(tmp_path.iterdir())) == 1
    assert [entry["event"] for entry in read_entries(tmp_path)] == list(range(90, 100))


def test_a_segment_of_barriers_alone_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_file, "SEGMENT_ENTRIES", 2)
    log = ChannelFile(tmp_path)
    for number in range(1, 8):
        log.append(Place(4, 4), Barrier(CheckpointId(number), Generation(1)))
    log.close()

    assert [entry["barrier"] for entry in read_entries(tmp_path)] == list(range(1, 8))

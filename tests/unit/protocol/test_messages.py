"""What a channel carries: messages, places that count Events and bytes, barriers."""

import pickle
from typing import get_args

import pytest
from tests.unit.protocol.builders import barrier, event

from cutwater.errors import ProtocolViolation
from cutwater.ids import CheckpointId, Generation
from cutwater.protocol.messages import (
    BARRIER_BYTES,
    START,
    Barrier,
    EndOfInput,
    Event,
    Flag,
    Message,
    Place,
    Watermark,
)

WIDEST = 2**64 - 1


def test_a_barrier_without_flags_asks_for_nothing_special() -> None:
    plain = barrier()

    assert not plain.is_full_snapshot
    assert not plain.is_drain
    assert not plain.is_cancel
    assert not plain.is_unaligned
    assert plain.may_overtake


def test_each_flag_is_read_by_its_own_name() -> None:
    assert barrier(flags=Flag.FULL_SNAPSHOT).is_full_snapshot
    assert barrier(flags=Flag.DRAIN).is_drain
    assert barrier(flags=Flag.CANCEL).is_cancel
    assert barrier(flags=Flag.UNALIGNED).is_unaligned


@pytest.mark.parametrize("flags", [Flag.FULL_SNAPSHOT, Flag.DRAIN, Flag.CANCEL])
def test_a_savepoint_a_drain_and_a_cancel_never_overtake(flags: Flag) -> None:
    """Rule F30."""
    assert not barrier(flags=flags).may_overtake


def test_a_barrier_that_has_overtaken_may_go_on_overtaking() -> None:
    assert barrier(flags=Flag.UNALIGNED).may_overtake


def test_an_overtaking_barrier_is_the_same_one_with_the_flag() -> None:
    before = barrier(7, started_at_ms=40)

    after = before.overtaking()

    assert after == barrier(7, Flag.UNALIGNED, started_at_ms=40)


def test_a_savepoints_barrier_cannot_be_made_to_overtake() -> None:
    with pytest.raises(ProtocolViolation, match="never UNALIGNED"):
        barrier(flags=Flag.FULL_SNAPSHOT).overtaking()


def test_a_cancelled_barrier_carries_only_the_cancel_flag() -> None:
    cancelled = barrier(7, Flag.DRAIN | Flag.FULL_SNAPSHOT).cancelled()

    assert cancelled.flags is Flag.CANCEL
    assert cancelled.checkpoint_id == 7


@pytest.mark.parametrize(
    "flags",
    [
        Flag.CANCEL | Flag.DRAIN,
        Flag.CANCEL | Flag.FULL_SNAPSHOT,
        Flag.CANCEL | Flag.UNALIGNED,
        Flag.UNALIGNED | Flag.FULL_SNAPSHOT,
        Flag.UNALIGNED | Flag.DRAIN,
        Flag(16),
    ],
)
def test_contradictory_or_unknown_flags_are_refused(flags: Flag) -> None:
    """Seed 003 M7: contradictory flags were allowed."""
    with pytest.raises(ProtocolViolation):
        barrier(flags=flags)


def test_a_draining_savepoint_is_no_contradiction() -> None:
    both = barrier(flags=Flag.DRAIN | Flag.FULL_SNAPSHOT)

    assert both.is_drain
    assert both.is_full_snapshot


@pytest.mark.parametrize("checkpoint_id", [0, -1, WIDEST + 1])
def test_a_checkpoint_id_that_does_not_fit_is_refused(checkpoint_id: int) -> None:
    """Seed 003 C4: id 0 meant "no barrier" and was lost."""
    with pytest.raises(ProtocolViolation, match="checkpoint id"):
        Barrier(CheckpointId(checkpoint_id), Generation(1))


@pytest.mark.parametrize("epoch", [0, -1, WIDEST + 1])
def test_an_epoch_that_does_not_fit_is_refused(epoch: int) -> None:
    with pytest.raises(ProtocolViolation, match="epoch"):
        Barrier(CheckpointId(1), Generation(epoch))


@pytest.mark.parametrize("started_at_ms", [-1, WIDEST + 1])
def test_a_start_time_that_does_not_fit_is_refused(started_at_ms: int) -> None:
    with pytest.raises(ProtocolViolation, match="start time"):
        barrier(started_at_ms=started_at_ms)


@pytest.mark.parametrize(
    "one",
    [
        barrier(),
        barrier(flags=Flag.DRAIN | Flag.FULL_SNAPSHOT, started_at_ms=1_700_000_000_000),
        Barrier(CheckpointId(2**32 + 5), Generation(2**32 + 6)),
        Barrier(CheckpointId(WIDEST), Generation(WIDEST), Flag.UNALIGNED, WIDEST),
    ],
)
def test_a_packed_barrier_is_read_back_whole(one: Barrier) -> None:
    """Seed 003 C3: ids above 32 bits came back as other ids."""
    packed = one.pack()

    assert len(packed) == BARRIER_BYTES == 32
    assert Barrier.unpack(packed) == one


@pytest.mark.parametrize("packed", [b"", b"\0" * 31, b"\0" * 33])
def test_bytes_of_another_length_are_no_barrier(packed: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="32 bytes"):
        Barrier.unpack(packed)


def test_a_packed_barrier_with_unknown_flags_is_refused() -> None:
    packed = bytearray(barrier().pack())
    packed[23] = 16

    with pytest.raises(ProtocolViolation, match="unknown flags 0x10"):
        Barrier.unpack(bytes(packed))


def test_a_packed_barrier_that_is_all_zeros_is_refused() -> None:
    """Seed 003 C4: a word of zeros and a barrier were the same thing."""
    with pytest.raises(ProtocolViolation, match="checkpoint id"):
        Barrier.unpack(bytes(BARRIER_BYTES))


def test_a_place_counts_events_and_their_bytes() -> None:
    behind = START.after(30).after(12)

    assert behind == Place(2, 42)


def test_a_place_prints_as_its_position() -> None:
    assert str(Place(7, 900)) == "@7"


def test_a_channel_carries_an_end_of_input_beside_events_watermarks_and_barriers() -> None:
    """Seed 003 H6: a finished source had no way to say so."""
    assert set(get_args(Message)) == {Event, Watermark, Barrier, EndOfInput}


@pytest.mark.parametrize("message", [event(4), Watermark(5), barrier(), EndOfInput()])
def test_a_message_is_a_value_that_survives_pickling(message: Message) -> None:
    assert pickle.loads(pickle.dumps(message)) == message

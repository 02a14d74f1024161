"""What a channel carries: places count Events and bytes, and the union of messages is closed."""

import pickle
from typing import get_args

import pytest
from tests.unit.protocol.builders import barrier, event

from cutwater.protocol.barrier import Barrier
from cutwater.protocol.messages import START, EndOfInput, Event, Message, Place, Watermark


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

"""In-flight ranges: from the step's position to that input's own barrier, counted once."""

from tests.unit.protocol.builders import A, B, place, refusal

from cutwater.protocol.messages import Place
from cutwater.protocol.step.in_flight import InFlightRange, Recording


def test_a_range_knows_how_many_events_and_bytes_it_has() -> None:
    one = InFlightRange(A, Place(3, 100), Place(5, 190))

    assert (one.count, one.size_bytes) == (2, 90)


def test_an_input_that_shows_its_barrier_is_recorded_up_to_it_at_once() -> None:
    """Seed 002 C1: the captured events were thrown away."""
    recording = Recording.begin({A: place(1)}, {A: place(4)})

    assert recording.complete
    assert recording.ranges() == (InFlightRange(A, place(1), place(4)),)


def test_an_input_without_a_visible_barrier_is_recorded_until_it_shows() -> None:
    """Seed 002 C4: recording stopped at the snapshot."""
    recording = Recording.begin({A: place(1), B: place(2)}, {A: place(4)})

    before = recording.complete
    recording.close(B, place(9))

    assert not before
    assert recording.complete
    assert recording.ranges() == (
        InFlightRange(A, place(1), place(4)),
        InFlightRange(B, place(2), place(9)),
    )


def test_an_input_that_stands_at_its_barrier_has_nothing_in_flight() -> None:
    recording = Recording.begin({A: place(3)}, {A: place(3)})

    assert recording.complete
    assert recording.ranges() == ()
    assert recording.size_bytes == 0


def test_ranges_come_in_the_order_of_the_inputs() -> None:
    """Seed 001 C5: the identity of the input was lost."""
    recording = Recording.begin({A: place(0), B: place(0)}, {B: place(1)})

    recording.close(A, place(1))

    assert [one.input for one in recording.ranges()] == [A, B]


def test_bytes_are_counted_once_while_an_input_grows_and_closes() -> None:
    """Seed 002 H13: bytes of other inputs were counted and counters were reset."""
    recording = Recording.begin({A: place(1), B: place(0)}, {A: place(3)})

    sizes = [recording.size_bytes]
    recording.grow(B, place(2))
    sizes.append(recording.size_bytes)
    recording.grow(B, place(5))
    sizes.append(recording.size_bytes)
    recording.close(B, place(6))
    sizes.append(recording.size_bytes)

    assert sizes == [20, 40, 70, 80]


def test_growth_of_a_closed_input_is_not_counted() -> None:
    recording = Recording.begin({A: place(1)}, {A: place(3)})

    recording.grow(A, place(9))

    assert recording.size_bytes == 20


def test_news_of_an_older_end_never_shrinks_what_is_recorded() -> None:
    """Seed 002 H13: the cap could be passed again and again."""
    recording = Recording.begin({A: place(0)}, {})
    recording.grow(A, place(5))

    recording.grow(A, place(3))

    assert recording.size_bytes == 50


def test_an_input_that_is_not_recorded_cannot_be_closed() -> None:
    recording = Recording.begin({A: place(0)}, {})

    assert "not being recorded" in refusal(recording, lambda: recording.close(B, place(1)))


def test_a_barrier_before_the_start_of_the_recording_is_refused() -> None:
    recording = Recording.begin({A: place(4)}, {})

    assert "lies before" in refusal(recording, lambda: recording.close(A, place(3)))


def test_every_recorded_input_can_be_protected_from_its_start() -> None:
    """Rule F26."""
    recording = Recording.begin({A: place(1), B: place(2)}, {A: place(4)})

    assert dict(recording.starts()) == {A: place(1), B: place(2)}
    assert recording.start(B) == place(2)
    assert (recording.is_open(A), recording.is_open(B)) == (False, True)

"""Which watermark of a snapshot belongs to which `withWatermark` call of the code of today."""

from pathlib import Path

import msgspec
import pytest

from cutwater.errors import RecoveryError
from cutwater.spark.engine.input_watermarks import (
    FILE,
    EventTime,
    InputWatermark,
    carry_over,
    read_watermarks,
)

CLICKS = InputWatermark("at", 1_000, ("clicks",), ("clicks",), 50_000)
VIEWS = InputWatermark("at", 1_000, ("views/1",), ("views",), 20_000)
SILENT = InputWatermark("at", 1_000, ("silent/2",), ("silent",))


def call(known: InputWatermark, **changed: object) -> EventTime:
    """A call of today's plan, which is like one of the snapshot but for this."""
    fields = msgspec.structs.asdict(known) | changed
    del fields["watermark_ms"]
    return EventTime(**fields)


def test_an_unchanged_plan_gets_every_watermark_back() -> None:
    now = [call(CLICKS), call(VIEWS), call(SILENT)]

    assert carry_over([CLICKS, VIEWS, SILENT], now) == (50_000, 20_000, None)


def test_a_snapshot_without_watermarks_tells_nothing() -> None:
    assert carry_over([], [call(CLICKS), call(VIEWS)]) == (None, None)


def test_calls_in_another_order_are_found_by_their_sources() -> None:
    assert carry_over([CLICKS, VIEWS], [call(VIEWS), call(CLICKS)]) == (20_000, 50_000)


def test_a_source_that_comes_through_a_channel_now_keeps_its_watermark() -> None:
    now = [call(CLICKS, streams=("valid/1",)), call(VIEWS)]

    assert carry_over([CLICKS, VIEWS], now) == (50_000, 20_000)


def test_a_new_call_begins_without_a_watermark_and_the_others_keep_theirs() -> None:
    assert carry_over([CLICKS], [call(CLICKS), call(VIEWS)]) == (50_000, None)
    assert carry_over([CLICKS, VIEWS], [call(VIEWS)]) == (20_000,)


def test_another_column_begins_without_a_watermark() -> None:
    assert carry_over([CLICKS], [call(CLICKS, column="seen_at")]) == (None,)


def test_two_uses_of_one_source_are_told_apart_by_position_while_the_streams_are_the_same() -> None:
    first = InputWatermark("at", 0, ("clicks/0",), ("clicks",), 1_000)
    second = InputWatermark("at", 0, ("clicks/1",), ("clicks",), 9_000)

    same = carry_over([first, second], [call(first), call(second)])
    swapped = carry_over([first, second], [call(second), call(first)])
    dropped = carry_over([first, second], [call(second)])

    assert same == (1_000, 9_000)
    assert swapped == (None, None)
    assert dropped == (None,)


def test_a_delay_that_has_changed_counts_from_the_newest_row_seen() -> None:
    longer, shorter = call(CLICKS, delay_ms=11_000), call(VIEWS, delay_ms=0)

    assert carry_over([CLICKS, VIEWS], [longer, shorter]) == (40_000, 21_000)


def test_a_snapshot_of_an_earlier_version_has_no_file(tmp_path: Path) -> None:
    assert read_watermarks(tmp_path) == ()


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    line = msgspec.to_builtins(CLICKS) | {"colour": "blue"}
    (tmp_path / FILE).write_bytes(msgspec.json.encode([line]))

    assert read_watermarks(tmp_path) == (CLICKS,)


@pytest.mark.parametrize("text", ["", "{}", '[{"column":"at"}]'])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)

    with pytest.raises(RecoveryError, match=FILE):
        read_watermarks(tmp_path)

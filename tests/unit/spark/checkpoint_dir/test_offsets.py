"""Lines of an offset log for other sets of streams, and which source an offset is of."""

from pathlib import Path

import pytest

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.offsets import (
    STREAMS_FILE,
    Stream,
    StreamKind,
    fits,
    for_plain,
    for_plan,
    kind_of_offset,
    note_streams,
    read_streams,
    reads_below,
)

ORDERS = Stream("orders", StreamKind.OUTSIDE, "FileSource[incoming]")
RATES = Stream("rates", StreamKind.OUTSIDE, "kafka")
PULSE = Stream("pulse", StreamKind.PULSE)
CHANNEL = Stream("valid", StreamKind.CHANNEL)


def test_a_pulse_is_an_empty_line_in_a_plan_and_no_line_in_a_plain_query() -> None:
    streams = (ORDERS, PULSE, RATES)

    assert for_plan(("a", "b"), streams) == ("a", None, "b")
    assert for_plain(("a", '{"tick":3}', "b"), streams) == ("a", "b")
    assert for_plain(("a", None, None), streams) == ("a", None)


def test_a_channel_has_no_offset_in_a_plain_query() -> None:
    assert for_plain(('{"channel":"valid"}', "b"), (CHANNEL, RATES)) == (None, "b")


@pytest.mark.parametrize("lines", [(), ("a",), ("a", "b", "c")])
def test_lines_of_another_number_of_streams_do_not_fit(lines: tuple[str, ...]) -> None:
    assert for_plan(lines, (ORDERS, PULSE, RATES)) is None
    assert for_plain(lines, (ORDERS, RATES)) is None


def test_the_list_is_read_as_it_was_noted(tmp_path: Path) -> None:
    note_streams(tmp_path, (CHANNEL,))
    note_streams(tmp_path, (ORDERS, PULSE))

    assert read_streams(tmp_path) == (ORDERS, PULSE)
    assert [path.name for path in tmp_path.iterdir()] == [STREAMS_FILE]


@pytest.mark.parametrize("text", [None, "", '[{"name":"a","kind":"other"}]'])
def test_a_list_that_is_missing_or_damaged_is_an_error(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / STREAMS_FILE).write_text(text, encoding="utf-8")

    with pytest.raises(RecoveryError, match="does not name the streams"):
        read_streams(tmp_path)


@pytest.mark.parametrize(
    ("offset", "source"),
    [
        ('{"logOffset":4}', "FileSource[/data/in]"),
        ('{"orders":{"0":12,"1":7}}', "kafka"),
        ('{"sourceVersion":1,"reservoirId":"x","reservoirVersion":3,"index":-1}', "delta"),
        ("42", "rate"),
    ],
)
def test_an_offset_fits_the_source_that_writes_it_and_no_other(offset: str, source: str) -> None:
    sources = ("FileSource[x]", "kafka", "delta", "rate")

    assert fits(source, offset)
    assert [source for source in sources if fits(source, offset)] == [
        one for one in sources if one[:4] == source[:4]
    ]
    # What is not known is let through: Spark has the last word.
    assert fits("something else", offset)
    assert fits(source, None)
    assert fits(source, '{"position":3}')


@pytest.mark.parametrize("text", [None, "", "{", "{}", "[]", '{"a":{}}', '{"a":{"x":1}}', '"a"'])
def test_a_form_that_no_known_source_writes_is_unknown(text: str | None) -> None:
    assert kind_of_offset(text) == "a source of unknown kind"


@pytest.mark.parametrize(
    ("description", "file", "expected"),
    [
        ("FileSource[/data/in]", "file:///data/in/2024/a%20b.json", True),
        ("FileSource[file:///data/in]", "file:///data/in/a.json", True),
        ("FileSource[/data/in]", "file:///data/inn/a.json", False),
        ("FileSource[s3a://b/in]", "s3a://b/in/a.json", True),
        ("FileSource[s3a://b/in]", "s3a://b/out/a.json", False),
        ("FileSource[/data/*/in]", "file:///elsewhere/a.json", True),
        ("kafka", "file:///elsewhere/a.json", True),
    ],
)
def test_a_file_source_knows_the_files_below_its_own_place(
    description: str, file: str, *, expected: bool
) -> None:
    assert reads_below(description, file) is expected


def test_a_relative_place_is_below_the_directory_of_the_process() -> None:
    here = Path.cwd().as_uri()

    assert reads_below("FileSource[incoming]", f"{here}/incoming/a.json")
    assert not reads_below("FileSource[incoming]", "file:///incoming/a.json")

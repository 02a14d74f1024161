"""Durations and sizes: what people write, and what they are told when it cannot be read."""

import pytest

from cutwater.errors import ConfigError
from cutwater.units import as_duration, as_size, milliseconds, size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("5s", 5_000),
        ("1m", 60_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1.5s", 1_500),
        ("0.5 minutes", 30_000),
        (" 10 Seconds ", 10_000),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100B", 100),
        ("512KB", 512 * 1024),
        ("64MB", 64 * 1024**2),
        ("64m", 64 * 1024**2),
        ("64MiB", 64 * 1024**2),
        ("1.5 gb", 3 * 1024**3 // 2),
        ("2TB", 2 * 1024**4),
    ],
)
def test_a_size_counts_in_powers_of_1024_however_it_is_spelled(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "s", "5", "-5s", "five seconds", "5 s later", "1e3s"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not a duration; write .* such as 500ms, 5s, 1m, 2h"):
        milliseconds(text)


def test_an_unknown_unit_is_refused_by_the_name_of_its_option() -> None:
    with pytest.raises(
        ConfigError, match=r"^\[CW-101\] trigger: '5 parsecs' has no unit"
    ) as caught:
        milliseconds("5 parsecs", "trigger")

    assert caught.value.option == "trigger"


def test_a_unit_of_time_is_no_unit_of_size() -> None:
    with pytest.raises(ConfigError, match=r"max_batch: '5s' .* such as 512KB, 64MB, 1GB"):
        size_bytes("5s", "max_batch")


def test_a_number_without_a_unit_is_refused_even_if_it_is_no_text() -> None:
    with pytest.raises(ConfigError, match="5 has no unit"):
        milliseconds(5)  # type: ignore[arg-type]


def test_a_part_of_a_millisecond_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a whole number of milliseconds"):
        milliseconds("0.5ms")


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a whole number of bytes"):
        size_bytes("0.3KB")


@pytest.mark.parametrize("text", ["0ms", "500ms", "1500ms", "10s", "90s", "10m", "1h", "36h"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert as_duration(milliseconds(text)) == text


@pytest.mark.parametrize("text", ["0B", "100B", "512KB", "256MB", "1GB", "2TB"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    assert as_size(size_bytes(text)) == text

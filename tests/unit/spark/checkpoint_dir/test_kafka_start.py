"""The file in which Spark's Kafka source keeps where it began."""

from pathlib import Path

from cutwater.spark.checkpoint_dir.kafka_start import read_start, write_start

OFFSETS = '{"orders":{"0":12}}'


def test_a_start_is_written_as_spark_writes_it_and_read_again(tmp_path: Path) -> None:
    log = tmp_path / "sources" / "0"

    write_start(log, OFFSETS)

    assert (log / "0").read_bytes() == b"\x00v1\n" + OFFSETS.encode()
    assert read_start(log) == OFFSETS


def test_a_source_that_has_begun_is_left_as_it_is(tmp_path: Path) -> None:
    write_start(tmp_path, OFFSETS)
    write_start(tmp_path, '{"orders":{"0":99}}')

    assert read_start(tmp_path) == OFFSETS


def test_a_source_that_has_not_begun_or_is_another_one_has_no_start(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("v1\n{}")

    assert read_start(None) is None
    assert read_start(tmp_path / "nothing") is None
    assert read_start(tmp_path) is None

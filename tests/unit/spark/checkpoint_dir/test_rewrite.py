"""Checkpoint directories of queries whose inputs are others now, written without Spark."""

from pathlib import Path

import pytest

from cutwater.errors import RecoveryError
from cutwater.ids import NO_BATCH, BatchId
from cutwater.spark.checkpoint_dir.logs import (
    is_committed,
    next_watermark_ms,
    read_batch,
    state_ids,
)
from cutwater.spark.checkpoint_dir.rewrite import ChangedQuery, donor_of, rebuild

HEADER = '{"batchWatermarkMs":70,"batchTimestampMs":1,"conf":{"a":"b"}}'


def query(directory: Path, batch: int, *lines: str) -> Path:
    """A directory as Spark leaves it, with files that its first source keeps."""
    for number in (batch - 1, batch):
        for log in ("offsets", "commits"):
            (directory / log).mkdir(parents=True, exist_ok=True)
        (directory / "offsets" / str(number)).write_text("\n".join(("v1", HEADER, *lines)))
    (directory / "commits" / str(batch)).write_text('v2\n{"nextBatchWatermarkMs":80}')
    (directory / "metadata").write_text('{"id":"mine"}')
    (directory / "sources" / "0").mkdir(parents=True)
    (directory / "sources" / "0" / "0").write_text(f"files of {directory.name}")
    (directory / "state").mkdir()
    return directory


def test_a_source_moves_out_of_a_query_and_takes_its_files_along(tmp_path: Path) -> None:
    totals = query(tmp_path / "totals", 7, '{"logOffset":3}')
    orders = tmp_path / "orders"

    rebuild(
        [
            ChangedQuery(checkpoint=totals, batch=BatchId(7), lines=[None]),
            ChangedQuery(
                checkpoint=orders,
                batch=BatchId(0),
                lines=['{"logOffset":3}'],
                logs={0: totals / "sources" / "0"},
                donor=donor_of(totals, BatchId(7)),
            ),
        ]
    )

    assert [read_batch(totals, BatchId(number)).offsets for number in (6, 7)] == [(None,), (None,)]
    assert read_batch(totals, BatchId(7)).watermark_ms == 70
    assert next_watermark_ms(totals, BatchId(7)) == 80
    assert list((totals / "sources").iterdir()) == []
    assert (totals / "state").is_dir()
    assert (totals / "metadata").read_text() == '{"id":"mine"}'
    assert read_batch(orders, BatchId(0)).offsets == ('{"logOffset":3}',)
    assert is_committed(orders, BatchId(0))
    assert state_ids(orders, BatchId(0)) == {}
    assert next_watermark_ms(orders, BatchId(0)) == 70
    assert (orders / "sources" / "0" / "0").read_text() == "files of totals"
    assert '"mine"' not in (orders / "metadata").read_text()
    assert not (orders / "offsets" / "1").exists()


def test_sources_change_their_numbers_with_their_files(tmp_path: Path) -> None:
    one, other = query(tmp_path / "one", 3, "a"), query(tmp_path / "other", 5, "b")

    rebuild(
        [
            ChangedQuery(
                checkpoint=one,
                batch=BatchId(3),
                lines=["b", "a"],
                logs={0: other / "sources" / "0", 1: one / "sources" / "0", 2: tmp_path / "none"},
            )
        ]
    )

    assert read_batch(one, BatchId(3)).offsets == ("b", "a")
    kept = {file.parent.name: file.read_text() for file in (one / "sources").glob("*/*")}
    assert kept == {"0": "files of other", "1": "files of one"}


def test_a_query_without_a_donor_begins_with_nothing_but_its_place(tmp_path: Path) -> None:
    rebuild([ChangedQuery(checkpoint=tmp_path / "q", batch=BatchId(2), lines=["a"])])

    assert read_batch(tmp_path / "q", BatchId(1)) == read_batch(tmp_path / "q", BatchId(2))
    assert donor_of(tmp_path, NO_BATCH) is None


@pytest.mark.parametrize("text", [None, "v1", "v2\n{}\nname:a"])
def test_a_donor_that_makes_no_sense_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    donor = query(tmp_path / "donor", 1, "a")
    file = donor / "offsets" / "1"
    file.unlink() if text is None else file.write_text(text)

    with pytest.raises(RecoveryError, match="donor/offsets/1"):
        rebuild([ChangedQuery(checkpoint=donor, batch=BatchId(1), lines=["a"])])

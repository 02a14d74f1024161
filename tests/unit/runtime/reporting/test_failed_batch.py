"""A batch that fails again and again is named by what it reads."""

import json
from pathlib import Path

import pytest

from cutwater.errors import RunError, StepError
from cutwater.ids import BatchId, StepId
from cutwater.runtime.reporting.failed_batch import (
    FailedBatch,
    FailedInput,
    Failures,
    events_of,
)
from cutwater.spark.checkpoint_dir.batch_inputs import reading_of
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind

STEP = StepId("totals")
ERROR = StepError(STEP, "totals, shop.py:7", "ValueError: no.")
OUTSIDE = Stream("orders", StreamKind.OUTSIDE, "FileStreamSource[in]")


def failed(batch: int, *files: str, step: StepId = STEP) -> FailedBatch:
    return FailedBatch(step, BatchId(batch), (FailedInput("orders", "offsets", "a", "b", files),))


def explained(*failures: FailedBatch | None) -> str:
    found = Failures()
    for failure in failures:
        found.note(failure)
    return found.explain(ERROR).message


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ([failed(4, "x")], "Batch 4 reads the file x (orders)."),
        (
            [failed(4, "x", "y"), failed(4, "x", "y")],
            "Batch 4, at which it failed 2 times in a row, reads 2 files: x, y (orders).",
        ),
        # Cut differently the second time: the file that both have read.
        (
            [failed(4, "x", "y"), failed(3, "w", "y")],
            "Batch 3, at which it failed 2 times in a row, reads the file y (orders).",
        ),
        ([failed(4, "x"), failed(5, "y")], "Batch 5 reads the file y (orders)."),
        (
            [failed(4, "x", step=StepId("other")), failed(4, "x")],
            "Batch 4 reads the file x (orders).",
        ),
        ([failed(4, "x"), None, failed(4, "x")], "Batch 4 reads the file x (orders)."),
        (
            [failed(4), failed(4), failed(4)],
            "Batch 4, at which it failed 3 times in a row, reads offsets of orders from a to b.",
        ),
        ([failed(1, "a", "b", "c", "d", "e")], "reads 5 files: a, b, c and 2 more (orders)."),
        (
            [FailedBatch(STEP, BatchId(2), (events_of("clean", 40, 43),))],
            "Batch 2 reads Events of clean from 40 to 43.",
        ),
    ],
)
def test_the_input_of_the_last_failures_in_a_row_is_named(
    failures: list[FailedBatch | None], said: str
) -> None:
    message = explained(*failures)

    assert message.startswith("step totals (totals, shop.py:7) failed: ValueError: no. ")
    assert message.endswith(said)


def test_an_error_is_left_as_it_is_where_nothing_is_known() -> None:
    other = RunError("the driver failed.")
    found = Failures()
    found.note(failed(1, "x"))

    assert explained() == explained(None) == ERROR.message
    assert explained(FailedBatch(STEP, BatchId(1))) == ERROR.message
    assert found.explain(other) is other


def test_files_are_found_between_the_offsets_of_a_batch(tmp_path: Path) -> None:
    def entry(number: int) -> str:
        return json.dumps({"path": f"file:///in/{number}.json", "timestamp": 1, "batchId": number})

    (tmp_path / "9.compact").write_text("\n".join(["v1", *map(entry, range(10))]))
    (tmp_path / "10").write_text(f"v1\n{entry(10)}")
    (tmp_path / "11").write_text("v1\nnot json")

    found = reading_of(OUTSIDE, '{"logOffset":8}', '{"logOffset":10}', tmp_path)
    first = reading_of(OUTSIDE, None, '{"logOffset":0}', tmp_path)
    kafka = reading_of(OUTSIDE, '{"t":{"0":5}}', '{"t":{"0":9}}', tmp_path)
    own = reading_of(OUTSIDE, None, "7", None)

    assert found is not None
    assert found.files == ("/in/10.json", "/in/9.json")
    assert first is not None
    assert first.files == ("/in/0.json",)
    assert kafka is not None
    assert kafka.text() == 'offsets of orders from {"t":{"0":5}} to {"t":{"0":9}}'
    assert own is not None
    assert own.text() == "offsets of orders from the beginning to 7"


def test_a_stream_without_new_rows_is_not_named(tmp_path: Path) -> None:
    pulse = Stream("pulse", StreamKind.PULSE)

    assert reading_of(OUTSIDE, "3", "3", tmp_path) is None
    assert reading_of(OUTSIDE, None, None, tmp_path) is None
    assert reading_of(pulse, "1", "2", tmp_path) is None

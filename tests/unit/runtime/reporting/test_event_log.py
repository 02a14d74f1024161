"""The journal: one event for each change of state, with pipeline, generation and part."""

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from cutwater.cli.logs import JsonLines, Lines, LogFormat, log_as
from cutwater.ids import CheckpointId, Generation, SinkId, StepId
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.reporting.attempt_history import AttemptHistory
from cutwater.runtime.reporting.event_log import FIELDS, EventLog, EventName
from cutwater.store.records.reports import StepReport

REPORT = StepReport(**dict.fromkeys(StepReport.__struct_fields__, 3))


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "cutwater.events")
    return caplog


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Leave the logger of Cutwater as it was."""
    found = logging.getLogger("cutwater")
    before = (found.handlers, found.level, found.propagate)
    yield found
    found.handlers, found.level, found.propagate = before


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [getattr(record, FIELDS) for record in caplog.records]


def test_an_attempt_is_logged_from_its_start_to_its_failure(
    heard: pytest.LogCaptureFixture,
) -> None:
    book = AttemptHistory(event_log=EventLog("orders", "uuid"))
    book.generation = Generation(2)
    number, request = CheckpointId(7), CheckpointRequest(CheckpointKind.SAVEPOINT, "mine")

    book.on_command(events.ReserveId(number, CheckpointKind.SAVEPOINT, request), {})
    book.on_acknowledged(number, StepId("totals"), lambda _: REPORT)
    book.on_command(events.EndAttempt(number, False, FailureReason.EXPIRED, "totals"), {})
    book.on_blocked(SinkId("table"), "no room")

    told = fields(heard)
    assert [entry["event"] for entry in told] == [
        "checkpoint.started",
        "checkpoint.acknowledged",
        "checkpoint.failed",
        "sink.blocked",
    ]
    assert {(entry["pipeline"], entry["pipeline_id"], entry["generation"]) for entry in told} == {
        ("orders", "uuid", 2)
    }
    assert [entry.get("checkpoint") for entry in told] == [7, 7, 7, None]
    assert [entry.get("step") for entry in told] == [None, "totals", None, None]
    assert (told[0]["kind"], told[0]["name"]) == ("SAVEPOINT", "mine")
    assert told[1]["alignment_ms"] == 3
    assert "totals" in str(told[2]["failure"])
    assert [record.levelname for record in heard.records] == ["INFO", "INFO", "WARNING", "ERROR"]
    assert book.failed == 1


def test_no_record_is_made_if_its_level_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "cutwater.events")
    EventLog("orders", "uuid").note(EventName.STATE, "it runs", generation=1, state="RUNNING")
    assert caplog.records == []


def test_a_record_is_one_line_of_json_whatever_is_in_it() -> None:
    record = logging.LogRecord("cutwater.x", logging.INFO, "f", 1, "two\nlines %s", ("ü",), None)
    setattr(record, FIELDS, {"event": "checkpoint.failed", "odd": object()})

    text = JsonLines().format(record)

    assert "\n" not in text
    made = json.loads(text)
    assert (made["event"], made["message"], made["level"]) == (
        "checkpoint.failed",
        "two\nlines ü",
        "INFO",
    )
    assert made["time"].endswith("+00:00")


def test_records_without_fields_and_traces_are_json_too() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        about = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("cutwater.x", logging.ERROR, "f", 1, "it failed", (), about)

    made = json.loads(JsonLines().format(record))

    assert (made["event"], made["message"]) == ("log", "it failed")
    assert "ValueError: broken" in made["trace"]


def test_json_goes_to_stderr_and_text_changes_nothing(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(logger.handlers)
    log_as(LogFormat.TEXT)
    assert logger.handlers == before

    log_as(LogFormat.JSON)
    EventLog("orders", "uuid").note(EventName.STATE, "it runs", generation=1, state="RUNNING")

    for handler in logger.handlers:
        handler.close()
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["state"] == "RUNNING"


class Stuck(io.StringIO):
    """A stream whose reader does not read until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()
        self.waits = threading.Event()

    def write(self, text: str) -> int:
        self.waits.set()
        assert self.is_free.wait(30)
        return super().write(text)


def test_a_reader_that_does_not_read_delays_no_thread_and_gets_the_count_of_its_losses() -> None:
    stream = Stuck()
    handler = Lines(stream, kept=2)
    handler.setFormatter(JsonLines())

    def log(number: int) -> None:
        made = logging.LogRecord("cutwater", logging.INFO, "f", 1, str(number), (), None)
        handler.handle(made)

    log(0)
    assert stream.waits.wait(30)
    for number in range(1, 8):
        log(number)
    stream.is_free.set()
    handler.close()

    told = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert told == ["0", "5 records were lost", "1", "2"]

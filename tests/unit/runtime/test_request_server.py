"""The desk: requests through the store are carried out once and answered, reports are written."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.runtime.fake_run_control import FakeRunControl
from tests.unit.store.checkpoint_writer import attempt_report
from tests.unit.store.cuts import PIPELINE
from tests.unit.store.faulty import FaultyBackend
from tests.waiting import wait_until

from cutwater.clock import wall_ms
from cutwater.errors import ConfigError, RequestFailed, Unavailable
from cutwater.ids import CheckpointId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.request_server import RequestServer
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.requests import Abort, Answer, AnswerState, Request, RequestKind

US = "our-nonce"
DONE, FAILED, TAKEN = AnswerState.DONE, AnswerState.FAILED, AnswerState.TAKEN


@pytest.fixture
def store() -> PipelineStore:
    return PipelineStore.of(FaultyBackend(), PIPELINE)


@pytest.fixture
def control() -> FakeRunControl:
    return FakeRunControl()


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutwater.runtime.request_server.LOOK_MS", 20)


@pytest.fixture
def desk(store: PipelineStore, control: FakeRunControl) -> Iterator[RequestServer]:
    made = RequestServer(store, US, control)
    made.start()
    yield made
    control.may_proceed.set()
    control.over.set()
    made.close()


def request(
    token: str = "token", kind: RequestKind = RequestKind.SAVEPOINT, **changes: object
) -> Request:
    at_ms = wall_ms()
    values: dict[str, object] = {
        "holder": US,
        "asked_by": "a test",
        "asked_at_ms": at_ms,
        "expires_at_ms": at_ms + 60_000,
    }
    return Request(token=token, kind=kind, **(values | changes))  # type: ignore[arg-type]


def answer_to(store: PipelineStore, token: str = "token") -> Answer:
    """Wait for the last answer, and for what follows it."""
    found: list[Answer] = []

    def is_answered() -> bool:
        answer = store.requests.answer(token)
        if answer is not None and answer.state is not TAKEN:
            found.append(answer)
        return bool(found) and store.requests.request(token) is None

    wait_until(is_answered, f"an answer to {token}")
    return found[-1]


@pytest.mark.usefixtures("desk")
def test_a_savepoint_is_taken_once_under_its_name(
    store: PipelineStore, control: FakeRunControl
) -> None:
    store.requests.ask(request(name="before"))

    answer = answer_to(store)

    assert control.requested == [CheckpointRequest(CheckpointKind.SAVEPOINT, "before")]
    assert (answer.state, answer.holder, answer.message) == (DONE, US, "")
    assert answer.report is not None
    assert (answer.report.checkpoint_id, answer.report.name) == (1, "before")


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("full", "kind"), [(False, CheckpointKind.CHECKPOINT), (True, CheckpointKind.FULL)]
)
def test_a_checkpoint_is_taken_as_it_was_requested(
    store: PipelineStore, control: FakeRunControl, full: bool, kind: CheckpointKind
) -> None:
    store.requests.ask(request(kind=RequestKind.CHECKPOINT, full=full))

    assert answer_to(store).state is DONE
    assert control.requested == [CheckpointRequest(kind)]


@pytest.mark.usefixtures("desk")
def test_a_waiting_client_sees_that_its_request_has_begun(
    store: PipelineStore, control: FakeRunControl
) -> None:
    control.may_proceed.clear()
    store.requests.ask(request(name="before"))
    wait_until(lambda: bool(control.requested), "the savepoint begins")
    backend = store.backend
    assert isinstance(backend, FaultyBackend)
    looks = backend.lists
    wait_until(lambda: backend.lists > looks + 2, "the desk has looked again")

    begun = store.requests.answer("token")
    control.may_proceed.set()

    assert begun is not None
    assert begun.state is TAKEN
    assert answer_to(store).state is DONE
    assert len(control.requested) == 1


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcome": "FAILED"}, "a step declined it"),
        ({"outcome": None}, "may still be completed"),
        ({"error": ConfigError("savepoint name", "is taken")}, "savepoint name: is taken."),
        ({"error": ValueError("broken")}, "ValueError: broken"),
    ],
)
def test_what_goes_wrong_is_answered(
    store: PipelineStore, control: FakeRunControl, change: dict[str, object], message: str
) -> None:
    for name, value in change.items():
        setattr(control, name, value)
    store.requests.ask(request(name="before"))

    answer = answer_to(store)

    assert answer.state is FAILED
    assert message in answer.message


@pytest.mark.usefixtures("desk")
def test_a_pending_checkpoint_is_aborted_for_the_reason_that_is_given(
    store: PipelineStore, control: FakeRunControl
) -> None:
    store.requests.ask(
        request(
            kind=RequestKind.ABORT,
            abort=Abort(checkpoint_id=CheckpointId(7), reason="the disk is replaced"),
        )
    )

    answer = answer_to(store)

    assert control.requested == ["abort 7: the disk is replaced"]
    assert (answer.state, answer.message) == (
        DONE,
        "it was aborted on request (the disk is replaced)",
    )
    assert answer.report is not None
    assert (answer.report.checkpoint_id, answer.report.failure) == (7, answer.message)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"error": RequestFailed("nothing was aborted.")}, "nothing was aborted."),
        ({"outcome": None}, "not known in time"),
    ],
)
def test_an_abort_that_is_not_done_is_answered_with_the_reason(
    store: PipelineStore, control: FakeRunControl, change: dict[str, object], message: str
) -> None:
    for name, value in change.items():
        setattr(control, name, value)
    store.requests.ask(request(kind=RequestKind.ABORT, abort=Abort(reason="why")))

    answer = answer_to(store)

    assert answer.state is FAILED
    assert message in answer.message


@pytest.mark.usefixtures("desk")
def test_an_abort_of_nothing_in_particular_takes_no_checkpoint(
    store: PipelineStore, control: FakeRunControl
) -> None:
    store.requests.ask(request(kind=RequestKind.ABORT))

    answer = answer_to(store)

    assert (answer.state, control.requested) == (FAILED, [])
    assert "does not say what to abort" in answer.message


@pytest.mark.usefixtures("desk")
def test_a_stop_is_answered_when_the_pipeline_has_ended(
    store: PipelineStore, control: FakeRunControl
) -> None:
    store.requests.ask(request(kind=RequestKind.STOP))

    answer = answer_to(store)

    assert control.requested == ["stop True", CheckpointRequest()]
    assert control.over.is_set()
    assert (answer.state, answer.report is not None) == (DONE, True)


@pytest.mark.usefixtures("desk")
def test_a_plain_stop_is_done_although_its_last_checkpoint_failed(
    store: PipelineStore, control: FakeRunControl
) -> None:
    control.outcome = "FAILED"
    store.requests.ask(request(kind=RequestKind.STOP))

    answer = answer_to(store)

    assert (answer.state, answer.report) == (DONE, None)
    assert "its last checkpoint failed: a step declined it" in answer.message


@pytest.mark.usefixtures("desk")
def test_a_stop_with_a_savepoint_that_fails_is_no_stop(
    store: PipelineStore, control: FakeRunControl
) -> None:
    control.outcome = "FAILED"
    store.requests.ask(request(kind=RequestKind.STOP, name="last", drain=True))

    answer = answer_to(store)

    assert control.requested == [CheckpointRequest(CheckpointKind.SAVEPOINT, "last", drain=True)]
    assert (answer.state, answer.message) == (FAILED, "a step declined it")
    assert not control.over.is_set()


@pytest.mark.usefixtures("desk")
def test_a_pipeline_that_fails_while_it_stops_says_so(
    store: PipelineStore, control: FakeRunControl
) -> None:
    control.state, control.detail = "FAILED", "step totals failed"
    store.requests.ask(request(kind=RequestKind.STOP, drain=True))

    answer = answer_to(store)

    assert (answer.state, answer.message) == (FAILED, "step totals failed")
    assert answer.report is not None


@pytest.mark.usefixtures("desk")
def test_what_is_not_ours_is_refused_and_what_is_too_late_is_removed(
    store: PipelineStore, control: FakeRunControl
) -> None:
    store.requests.ask(request("elses", holder="another"))
    store.requests.ask(request("late", expires_at_ms=wall_ms() - 1))
    store.requests.tell(
        Answer(token="taken", state=TAKEN, holder="another", answered_at_ms=wall_ms())
    )
    store.requests.ask(request("taken"))

    assert "another process" in answer_to(store, "elses").message
    assert "another process" in answer_to(store, "taken").message
    wait_until(lambda: "late" not in store.requests.tokens(), "the late one is removed")
    assert control.requested == []


@pytest.mark.usefixtures("desk")
def test_an_idle_look_is_one_list(store: PipelineStore) -> None:
    backend = store.backend
    assert isinstance(backend, FaultyBackend)
    answered = Answer(token="left", state=DONE, holder=US, answered_at_ms=wall_ms())
    store.requests.tell(answered)
    wait_until(lambda: store.requests.answer("left") is not None, "it is there")
    before = backend.lists
    # A look that reads lists first: it is over when the next one lists.
    wait_until(lambda: backend.lists > before + 1, "the desk has looked")
    backend.reads.clear()
    before = backend.lists

    wait_until(lambda: backend.lists > before + 1, "the desk has looked twice")

    assert backend.reads == []
    assert store.requests.answer("left") == answered


def test_a_request_made_while_the_pipeline_ends_is_answered(
    store: PipelineStore, control: FakeRunControl
) -> None:
    desk = RequestServer(store, US, control)
    desk.start()
    store.requests.ask(request(name="before", expires_at_ms=wall_ms() + 60_000))

    control.over.set()
    desk.close()

    answer = store.requests.answer("token")
    assert answer is not None
    assert answer.state in {DONE, FAILED}
    assert control.requested == [] if answer.state is FAILED else len(control.requested) == 1


def test_reports_are_written_and_a_store_that_is_away_costs_only_reports(
    store: PipelineStore, desk: RequestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = store.backend
    write, failures = backend.put, [Unavailable("reports", "away")]

    def put(path: object, data: bytes) -> None:
        if failures:
            raise failures.pop()
        write(path, data)  # type: ignore[arg-type]

    monkeypatch.setattr(backend, "put", put)
    desk.report(attempt_report(1))
    desk.report(attempt_report(2))
    wait_until(lambda: store.reports.attempt(CheckpointId(2)) is not None, "the report is written")

    assert store.reports.attempt(CheckpointId(1)) is None


def test_a_report_of_the_last_moment_is_written(
    store: PipelineStore, control: FakeRunControl
) -> None:
    desk = RequestServer(store, US, control)
    desk.start()
    desk.report(attempt_report(1))
    desk.close()

    assert store.reports.attempt(CheckpointId(1)) == attempt_report(1)


def test_a_report_keeps_what_users_were_shown(control: FakeRunControl) -> None:
    report = control.checkpoint(CheckpointRequest(CheckpointKind.SAVEPOINT, "before"), None)
    assert report is not None

    record = replace(report, committed_ms=300).record()

    assert (record.name, record.duration_ms, record.committed_ms) == ("before", 250, 300)
    assert (record.uploaded_bytes, record.state_bytes) == (2048, 2048)

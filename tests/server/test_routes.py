"""The API: Flink's paths and fields, over a pipeline that runs and over one that does not."""

from urllib.parse import quote

import pytest
from tests.server.api_client import ApiClient, refusal_reason
from tests.server.sparkless_run import SparklessRun
from tests.unit.store.checkpoint_writer import BEGAN_MS, ONE, attempt_report
from tests.unit.store.cuts import PIPELINE
from tests.waiting import wait_until

from cutwater.clock import wall_ms
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.records.lease import Lease
from cutwater.store.records.reports import AttemptStatus, RecoveryReport
from cutwater.store.records.requests import Abort, Answer, AnswerState

LIST = "/jobs/orders/checkpoints"


def test_checkpoints_are_listed_newest_first_with_counts_and_the_latest_of_each_kind(
    live: ApiClient, running: SparklessRun
) -> None:
    running.checkpoint()
    running.savepoint("before")
    running.fail("step totals declined it")
    running.checkpoint()

    found = live.json(LIST)

    assert [entry["id"] for entry in found["history"]] == [4, 3, 2, 1]
    assert found["counts"] == {
        "restored": 0,
        "total": 4,
        "in_progress": 0,
        "completed": 3,
        "failed": 1,
    }
    latest = found["latest"]
    assert (latest["completed"]["id"], latest["savepoint"]["id"], latest["failed"]["id"]) == (
        4,
        2,
        3,
    )
    assert latest["failed"]["failure_message"] == "step totals declined it"
    assert latest["savepoint"]["checkpoint_type"] == "SAVEPOINT"
    assert latest["savepoint"]["name"] == "before"
    newest = found["history"][0]
    assert (newest["className"], newest["status"]) == ("completed", "COMPLETED")
    assert (newest["num_acknowledged_subtasks"], newest["num_subtasks"]) == (2, 2)
    assert newest["external_path"].endswith("/manifests/000000000004")
    assert newest["sink_versions"] == {"table": "4"}
    assert len(live.json(f"{LIST}?limit=2")["history"]) == 2


def test_the_summary_has_flinks_percentiles(stopped: ApiClient, running: SparklessRun) -> None:
    writer = running.stored.writer
    for number in range(1, 12):
        writer.decide(number)
        writer.store.reports.write(attempt_report(number, duration_ms=(number - 1) * 100))

    spread = stopped.json(LIST)["summary"]["end_to_end_duration"]

    # From 0 to 1000 in equal steps, so a percentile is ten times its own number.
    assert spread == {
        "min": 0,
        "max": 1000,
        "avg": 500,
        "p50": pytest.approx(500),
        "p90": pytest.approx(900),
        "p95": pytest.approx(950),
        "p99": pytest.approx(990),
        "p999": pytest.approx(999),
    }


def test_an_attempt_under_way_shows_its_steps_and_where_the_barrier_is(
    live: ApiClient, running: SparklessRun
) -> None:
    with running.held():
        asked = live.owner.post(LIST, json={"checkpointType": "FULL"}).json()["request-id"]
        wait_until(lambda: len(live.json("/jobs/orders/now")["recent"]) == 1, "it has begun")
        now = live.json("/jobs/orders/now")
        state = live.json(f"{LIST}/{asked}")
        (opened,) = live.json(LIST)["history"]
        detail = live.json(f"{LIST}/details/1")
        (step,) = live.json(f"{LIST}/details/1/subtasks/totals")["subtasks"]

    assert state == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    assert (opened["status"], opened["kind"]) == ("IN_PROGRESS", "FULL")
    assert (opened["num_acknowledged_subtasks"], opened["num_subtasks"]) == (1, 2)
    assert detail["tasks"]["orders"]["async_duration"] == 30
    assert detail["tasks"]["totals"]["status"] == "IN_PROGRESS"
    assert now["dag"]["checkpoint"] == 1
    assert [step["barrier"] for step in now["dag"]["steps"]] == ["ACKNOWLEDGED", "ALIGNING"]
    assert [step["alignment"] for step in now["dag"]["steps"]] == [
        None,
        {
            "inputs": 2,
            "aligned": ["0:orders"],
            "waiting": ["1:refunds"],
            "held": 2048,
            "behind": 512,
            "recorded": 1024,
        },
    ]
    pending = detail["tasks"]["totals"]
    assert (pending["aligned_inputs"], pending["inputs"]) == (1, 2)
    assert (pending["alignment_buffered"], pending["persisted_data"]) == (2048, 1024)
    assert (step["alignment"]["buffered"], step["alignment"]["persisted"]) == (2048, 1024)
    assert detail["tasks"]["orders"]["inputs"] is None
    (channel,) = now["dag"]["channels"]
    assert channel["barrier"] is True
    assert (channel["backlog_messages"], channel["rows_per_second"]) == (3, 1234.5)
    wait_until(lambda: live.json(f"{LIST}/{asked}")["status"]["id"] == "COMPLETED", "it is over")
    channels = "/jobs/orders/channels"
    wait_until(lambda: not live.json(channels)["channels"][0]["barrier"], "the barrier is gone")


def test_one_checkpoint_is_described_step_by_step(live: ApiClient, running: SparklessRun) -> None:
    running.stored.writer.decide(1, in_flight=True)
    running.stored.writer.store.reports.write(attempt_report(1))

    found = live.json(f"{LIST}/details/1")
    step = live.json(f"{LIST}/details/1/subtasks/totals")

    assert found["checkpoint_type"] == "UNALIGNED_CHECKPOINT"
    assert found["tasks"]["totals"]["unaligned_checkpoint"] is True
    assert found["tasks"]["totals"]["in_flight_events"] == 1
    assert found["tasks"]["orders"]["alignment_duration"] == 7
    assert found["tasks"]["orders"]["offsets"] == {"orders": '{"at":1}'}
    (subtask,) = step["subtasks"]
    assert (subtask["index"], subtask["status"]) == (0, "completed")
    assert subtask["unaligned_checkpoint"] is True
    assert subtask["alignment"]["persisted"] == 30
    assert "no such step" in live.refusal(f"{LIST}/details/1/subtasks/missing", 404)


def test_savepoints_and_checkpoints_are_taken_and_their_end_is_reported(
    live: ApiClient, running: SparklessRun
) -> None:
    saved = live.complete_operation(
        "/jobs/orders/savepoints", {"name": "mine"}, "/jobs/orders/savepoints"
    )
    again = live.complete_operation(
        "/jobs/orders/savepoints", {"name": "mine"}, "/jobs/orders/savepoints"
    )
    unnamed = live.complete_operation("/jobs/orders/savepoints", {}, "/jobs/orders/savepoints")
    plain = live.complete_operation(LIST, {"checkpointType": "CONFIGURED"}, LIST)

    assert (saved["checkpointId"], saved["name"], saved["failure-cause"]) == (1, "mine", None)
    assert saved["location"].endswith("/manifests/000000000001")
    assert "there is a savepoint mine already" in again["failure-cause"]["message"]
    assert unnamed["name"].startswith("savepoint-2")
    assert plain["checkpointId"] == 3
    assert [report.kind for report in running.reports] == ["SAVEPOINT", "SAVEPOINT", "CHECKPOINT"]


def test_a_stop_is_reported_as_completed_when_the_pipeline_has_ended(
    live: ApiClient, running: SparklessRun
) -> None:
    body = {"savepoint": "last", "drain": True}
    ended = live.complete_operation("/jobs/orders/stop", body, "/jobs/orders/savepoints")

    assert running.stopped_with == ("last", True)
    assert (ended["checkpointId"], ended["name"]) == (1, "last")
    assert live.json("/jobs/orders")["state"] == "FINISHED"


def test_a_pending_checkpoint_is_aborted_and_the_reason_is_shown(
    live: ApiClient, running: SparklessRun
) -> None:
    with running.held():
        asked = live.owner.post(LIST, json={}).json()["request-id"]
        wait_until(lambda: bool(running.reports), "it has begun")
        other = live.complete_operation(f"{LIST}/abort", {"checkpointId": 9, "reason": "why"}, LIST)
        aborted = live.complete_operation(f"{LIST}/abort", {"reason": "the disk is replaced"}, LIST)
    wait_until(lambda: live.json(f"{LIST}/{asked}")["status"]["id"] == "COMPLETED", "it is over")
    again = live.complete_operation(f"{LIST}/abort", {"checkpointId": 1, "reason": "why"}, LIST)

    why = "it was aborted on request (the disk is replaced)"
    assert "nothing was aborted" in other["failure-cause"]["message"]
    assert (aborted["checkpointId"], aborted["message"], aborted["failure-cause"]) == (1, why, None)
    assert "nothing was aborted" in again["failure-cause"]["message"]
    waited_for = live.json(f"{LIST}/{asked}")["operation"]
    assert waited_for["failure-cause"]["message"] == why
    (listed,) = live.json(LIST)["history"]
    assert (listed["status"], listed["failure_message"]) == ("FAILED", why)
    assert live.json(f"{LIST}/details/1")["failure_message"] == why


def test_an_abort_needs_the_token(live: ApiClient) -> None:
    assert refusal_reason(live.anonymous.post(f"{LIST}/abort", json={"reason": "why"}), 401)


def test_an_abort_gets_through_where_so_many_others_wait(
    live: ApiClient, running: SparklessRun
) -> None:
    with running.held():
        for _ in range(16):
            assert live.owner.post(LIST, json={}).status_code == 202
        wait_until(lambda: bool(running.reports), "one has begun")

        assert live.owner.post(f"{LIST}/abort", json={"reason": "why"}).status_code == 202


def test_asking_twice_with_one_id_asks_once(live: ApiClient, running: SparklessRun) -> None:
    body = {"triggerId": "0123456789abcdef0123456789abcdef"}
    for _ in range(3):
        assert live.owner.post(LIST, json=body).json()["request-id"] == body["triggerId"]

    wait_until(lambda: bool(running.reports), "it is taken")
    assert len(running.reports) == 1


def test_so_many_requests_are_under_way_and_no_more(live: ApiClient, running: SparklessRun) -> None:
    with running.held():
        taken = [live.owner.post(LIST, json={}) for _ in range(17)]

    assert [response.status_code for response in taken] == [202] * 16 + [429]
    assert "too many" in refusal_reason(taken[-1], 429)


WRONG = [
    (LIST, {"checkpointType": "SOME"}),
    (LIST, {"checkpointType": 1}),
    (LIST, {"unknown": True}),
    (LIST, []),
    (LIST, "text"),
    ("/jobs/orders/savepoints", {"name": ""}),
    ("/jobs/orders/savepoints", {"name": "../../etc/passwd"}),
    ("/jobs/orders/savepoints", {"name": "17"}),
    ("/jobs/orders/savepoints", {"name": "x" * 101}),
    ("/jobs/orders/savepoints", {"name": "a\x00b"}),
    ("/jobs/orders/savepoints", {"cancel-job": "yes"}),
    ("/jobs/orders/savepoints", {"target-directory": "/tmp"}),
    ("/jobs/orders/stop", {"targetDirectory": "/tmp"}),
    ("/jobs/orders/stop", {"drain": 1}),
    ("/jobs/orders/stop", {"savepoint": "a/b"}),
    (LIST, {"triggerId": "../x"}),
    (f"{LIST}/abort", None),
    (f"{LIST}/abort", {}),
    (f"{LIST}/abort", {"reason": ""}),
    (f"{LIST}/abort", {"reason": "  "}),
    (f"{LIST}/abort", {"reason": "a\x1bb"}),
    (f"{LIST}/abort", {"reason": "x" * 501}),
    (f"{LIST}/abort", {"reason": "why", "checkpointId": 0}),
    (f"{LIST}/abort", {"reason": "why", "checkpointId": "1"}),
]


@pytest.mark.parametrize(("path", "body"), WRONG)
def test_an_invalid_request_is_refused_with_a_reason(
    live: ApiClient, running: SparklessRun, path: str, body: object
) -> None:
    assert refusal_reason(live.owner.post(path, json=body), 400)
    assert running.reports == []
    assert running.stopped_with is None


@pytest.mark.parametrize("text", ["-1", "0x1", "1.5", "one", "9" * 400, str(2**63), "%00", "1e3"])
def test_a_number_that_is_none_is_refused_with_a_reason(live: ApiClient, text: str) -> None:
    assert live.refusal(f"{LIST}/details/{text}", 400)


@pytest.mark.parametrize(
    "path",
    [
        f"{LIST}/details/7",
        "/jobs/missing",
        "/jobs/..%2f..%2fetc",
        "/jobs/%00/checkpoints",
        f"/jobs/{quote('ümläut ☃')}/dag",
        f"{LIST}/{'0' * 32}",
        "/static/..%2fapi.py",
        "/static/%2e%2e/api.py",
        "/static/__init__.py",
        "/docs",
    ],
)
def test_what_is_not_there_is_a_404_with_a_reason(live: ApiClient, path: str) -> None:
    assert live.refusal(path, 404)


@pytest.mark.parametrize("name", ["missing", "..%2f..%2fetc", "%00", "%2e", "x" * 255])
def test_a_pipeline_that_the_store_does_not_hold_is_a_404(stopped: ApiClient, name: str) -> None:
    assert stopped.refusal(f"/jobs/{name}/dag", 404)


def test_a_stopped_pipeline_is_read_from_its_store(
    stopped: ApiClient, running: SparklessRun
) -> None:
    running.stored.writer.decide(1)
    running.stored.writer.decide(2, CheckpointKind.SAVEPOINT, name="kept")
    running.stored.writer.attempt(3)
    report = RecoveryReport(
        generation=ONE,
        checkpoint_id=None,
        started_at_ms=BEGAN_MS,
        reason="",
        choose_ms=1,
        commit_replay_ms=2,
        fetch_ms=3,
        start_ms=4,
        first_batch_ms=5,
        repeated_commits=0,
        state_bytes=6,
    )
    running.stored.writer.store.reports.write(report)

    (job,) = stopped.json("/jobs/overview")["jobs"]
    dag = stopped.json(f"/jobs/{PIPELINE}/dag")
    tables = stopped.json("/jobs/orders/tables")

    assert (job["jid"], job["name"], job["state"]) == (PIPELINE, "orders", "NOT_RUNNING")
    assert (job["live"], job["can_change"], job["start-time"]) == (False, False, BEGAN_MS)
    assert [step["id"] for step in dag["steps"]] == ["orders", "totals"]
    assert [(channel["source"], channel["reader"]) for channel in dag["channels"]] == [
        ("orders", "totals")
    ]
    assert [entry["status"] for entry in stopped.json(LIST)["history"]] == [
        "FAILED",
        "COMPLETED",
        "COMPLETED",
    ]
    assert stopped.json("/jobs/orders/recoveries")["recoveries"][0]["total"] == 15
    assert [table["versions"] for table in tables["cuts"]] == [{"table": "2"}, {"table": "1"}]
    assert tables["sinks"] == [
        {"sink": "table", "format": "delta", "target": "file:///tables/totals"}
    ]
    assert stopped.json(f"{LIST}/config")["interval"] is None
    refused = stopped.owner.post(LIST, json={})
    assert "does not run" in refusal_reason(refused, 409)


def test_a_pipeline_of_another_process_is_asked_through_the_store(
    stopped: ApiClient, running: SparklessRun
) -> None:
    # This very process plays the other one: it holds the lease and answers.
    lease = Lease("elsewhere", 7, "nonce", wall_ms())
    running.stored.hold(lease)

    asked = stopped.owner.post("/jobs/orders/savepoints", json={"name": "far"})
    token = asked.json()["request-id"]
    (request,) = (running.stored.writer.store.requests.request(entry) for entry in (token,))

    assert request is not None
    assert (request.kind.value, request.name, request.holder) == ("savepoint", "far", "nonce")
    abort = {"checkpointId": 7, "reason": "too slow"}
    abort_token = stopped.owner.post(f"{LIST}/abort", json=abort).json()["request-id"]
    asked_abort = running.stored.writer.store.requests.request(abort_token)
    assert asked_abort is not None
    assert asked_abort.abort == Abort(checkpoint_id=CheckpointId(7), reason="too slow")
    why = "it was aborted on request (too slow)"
    failed = attempt_report(7, status=AttemptStatus.FAILED, failure=why)
    running.stored.writer.store.requests.tell(
        Answer(
            token=abort_token,
            state=AnswerState.DONE,
            holder="nonce",
            answered_at_ms=wall_ms(),
            message=why,
            report=failed,
        )
    )
    aborted = stopped.json(f"{LIST}/{abort_token}")["operation"]
    assert (aborted["checkpointId"], aborted["message"], aborted["location"]) == (7, why, None)
    waiting = stopped.json(f"/jobs/orders/savepoints/{token}")
    assert waiting["status"]["id"] == "IN_PROGRESS"
    assert stopped.json("/jobs/orders")["state"] == "RUNNING"
    running.stored.hold(Lease("elsewhere", 7, "nonce", 0))
    gone = stopped.json(f"/jobs/orders/savepoints/{token}")
    assert "has ended before it answered" in gone["operation"]["failure-cause"]["message"]


def test_a_rewind_is_refused_with_a_reason_and_never_done(
    live: ApiClient, running: SparklessRun
) -> None:
    running.checkpoint()
    log = running.stored.writer.store.log.read()

    assert "checkpoint 99 is not there" in live.refusal("/jobs/orders/rewind?to=99", 400)
    assert live.refusal("/jobs/orders/rewind?to=", 400)
    assert live.refusal("/jobs/orders/rewind", 400)
    assert live.refusal("/jobs/orders/rewind?to=a%00b", 400)
    assert live.refusal(f"/jobs/orders/rewind?to={'9' * 201}", 400)
    for time in ("0001-01-01T00:00%2B14:00", "9999-12-31T23:59-12:00", "0001-01-01"):
        assert "before the year 1" in live.refusal(f"/jobs/orders/rewind?to={time}", 400)
    found = live.json("/jobs/orders/rewind?to=1")
    assert (found["to"], found["current"], found["undone"]) == (1, 1, [])
    assert found["commands"][-1].startswith("cutwater rewind orders --to 1 --store ")
    assert found["commands"][0].startswith("cutwater stop orders --store ")
    assert running.stored.writer.store.log.read() == log


def test_a_store_that_does_not_answer_is_a_503(live: ApiClient, running: SparklessRun) -> None:
    running.stored.writer.decide(1)
    manifest = running.stored.directory / "pipelines" / PIPELINE / "log" / "000000000001"
    manifest.write_bytes(b"not a record")

    assert live.refusal(LIST, 503)

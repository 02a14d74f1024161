"""Probes: whether the process lives and whether its pipeline runs, asked without a token."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.server.api_client import ApiClient, bearer, refusal_reason, serve_app
from tests.server.sparkless_run import SparklessRun
from tests.waiting import DEADLINE_S

from cutwater.server.app import make_app
from cutwater.server.auth import Token
from cutwater.server.metrics import STATES
from cutwater.server.pipelines import OnePipeline


@pytest.mark.parametrize("state", STATES)
def test_a_process_that_answers_lives_and_is_ready_only_while_its_pipeline_runs(
    live: ApiClient, running: SparklessRun, state: str
) -> None:
    running.state = state

    assert live.json("/livez") == {"state": state}
    assert live.json("/readyz", 200 if state == "RUNNING" else 503) == {"state": state}


def test_a_store_is_served_as_soon_as_anything_is(stopped: ApiClient) -> None:
    assert stopped.json("/livez") == stopped.json("/readyz") == {"state": "SERVING"}


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def early(request: pytest.FixtureRequest) -> Iterator[tuple[httpx.Client, OnePipeline, object]]:
    """A server before there is anything to show."""
    pipelines = OnePipeline()
    guard = make_app(pipelines, None, request.param)
    with serve_app(guard) as url, httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        yield client, pipelines, guard


def test_a_pipeline_that_has_not_started_is_live_and_not_ready(
    early: tuple[httpx.Client, OnePipeline, object], running: SparklessRun, tmp_path: Path
) -> None:
    client, pipelines, guard = early
    before = [client.get(path) for path in ("/livez", "/readyz")]
    refused = [client.get(path) for path in ("/jobs/overview", "/metrics", "/nothing")]
    refused.append(client.post("/jobs/orders/stop", json={}))
    page = client.get("/")
    token = Token.of(tmp_path)
    pipelines.show(running.served())
    guard.admit(token)  # type: ignore[attr-defined]

    assert [(response.status_code, response.json()) for response in before] == [
        (200, {"state": "STARTING"}),
        (503, {"state": "STARTING"}),
    ]
    assert {refusal_reason(response, 503) for response in refused} == {
        "the pipeline has not started yet"
    }
    assert page.status_code == 200
    assert client.get("/readyz").json() == {"state": "RUNNING"}
    assert client.get("/jobs/overview", headers=bearer(token)).status_code == 200


def test_a_probe_needs_no_token_and_returns_nothing_but_a_state(
    running: SparklessRun, tmp_path: Path
) -> None:
    running.detail = "a secret of the sink"
    app = make_app(OnePipeline(running.served()), Token.of(tmp_path), "0.0.0.0")
    with serve_app(app) as url, httpx.Client(base_url=url, timeout=DEADLINE_S) as kubelet:
        for path in ("/livez", "/readyz"):
            answer = kubelet.get(path, headers={"Host": "10.1.2.3:4080"})
            assert (answer.status_code, answer.json()) == (200, {"state": "RUNNING"})
        assert refusal_reason(kubelet.post("/livez", json={}), 401)


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/", "/static/main.js", "/jobs/overview", "/metrics", "/jobs/no"]
)
def test_a_head_is_answered_like_a_get_without_a_body(live: ApiClient, path: str) -> None:
    got, headed = live.anonymous.get(path), live.anonymous.head(path)

    assert headed.status_code == got.status_code
    assert headed.headers["content-type"] == got.headers["content-type"]
    assert int(headed.headers["content-length"]) > 0
    assert headed.content == b""


def test_a_head_of_what_only_changes_is_not_allowed(live: ApiClient) -> None:
    assert live.owner.head("/jobs/orders/stop").status_code == 405

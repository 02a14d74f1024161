"""Access: any local user may read, a user with the token may change, other sites may do nothing."""

import stat
from pathlib import Path

import httpx
import pytest
from tests.server.api_client import ApiClient, bearer, refusal_reason, serve_app
from tests.server.sparkless_run import SparklessRun
from tests.waiting import DEADLINE_S

from cutwater.errors import ConfigError
from cutwater.server.app import make_app
from cutwater.server.auth import BODY_BYTES_MAX, VARIABLE, Token, is_loopback
from cutwater.server.pipelines import OnePipeline

CHANGES = ("/jobs/orders/checkpoints", "/jobs/orders/savepoints", "/jobs/orders/stop")


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_needs_the_token(live: ApiClient, running: SparklessRun, path: str) -> None:
    for header in (None, "", "Bearer", "Bearer wrong", "Basic d3Jvbmc6", "bearer é"):
        sent = {} if header is None else {b"Authorization": header.encode()}
        answer = live.anonymous.post(path, json={}, headers=sent)
        assert refusal_reason(answer, 401) == "changing needs the token"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert live.anonymous.post(f"{path}?token=wrong", json={}).status_code == 401

    assert running.reports == []
    assert running.stopped_with is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4080", "127.0.0.1.evil.example", "", "[::1", "10.0.0.7"]
)
def test_a_name_that_another_site_lets_resolve_here_is_not_answered(
    live: ApiClient, host: str
) -> None:
    for client_ in (live.anonymous, live.owner):
        answer = client_.get("/jobs/overview", headers={"Host": host})
        assert "Host header" in refusal_reason(answer, 403)


@pytest.mark.parametrize("host", ["127.0.0.1:4080", "localhost", "LOCALHOST:1", "[::1]:4080"])
def test_the_names_of_this_machine_are_answered(live: ApiClient, host: str) -> None:
    assert live.anonymous.get("/jobs/overview", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_a_request_of_another_site_is_not_answered_even_with_the_token(
    live: ApiClient, running: SparklessRun, headers: dict[str, str]
) -> None:
    assert refusal_reason(live.owner.post(CHANGES[0], json={}, headers=headers), 403)
    assert refusal_reason(live.anonymous.get("/jobs/overview", headers=headers), 403)
    assert running.reports == []


def test_a_link_from_another_site_may_open_the_page_and_nothing_else(live: ApiClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}

    assert live.anonymous.get("/", headers=link).status_code == 200
    assert live.anonymous.get("/static/main.js", headers=link).status_code == 403


def test_the_own_origin_may_ask(live: ApiClient) -> None:
    origin = str(live.owner.base_url).rstrip("/")
    same = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    assert live.owner.post(CHANGES[0], json={}, headers=same).status_code == 202


def test_no_answer_lets_another_origin_read_it_or_a_page_run_what_is_not_ours(
    live: ApiClient,
) -> None:
    for path in ("/", "/jobs/overview", "/nothing", "/static/main.js", "/metrics"):
        headers = live.anonymous.get(path).headers
        assert not [header for header in headers if header.startswith("access-control")]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_bodies_are_short_and_json(live: ApiClient) -> None:
    long = b'{"name": "' + b"x" * BODY_BYTES_MAX + b'"}'
    json = {"Content-Type": "application/json"}
    chunks = iter([long[:1000], long[1000:]])

    assert "bytes" in refusal_reason(live.owner.post(CHANGES[1], content=long, headers=json), 413)
    assert "bytes" in refusal_reason(live.owner.post(CHANGES[1], content=chunks, headers=json), 413)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert "JSON" in refusal_reason(
        live.owner.post(CHANGES[1], content=b"name=x", headers=form), 415
    )
    assert "JSON" in refusal_reason(live.owner.post(CHANGES[1], content=b"{}"), 415)


def test_an_address_that_others_reach_gives_nothing_without_the_token(
    running: SparklessRun, tmp_path: Path
) -> None:
    token = Token.of(tmp_path)
    app = make_app(OnePipeline(running.served()), token, "0.0.0.0")
    named = {"Host": "spark-driver.example"}
    with (
        serve_app(app) as url,
        httpx.Client(base_url=url, headers=named, timeout=DEADLINE_S) as anonymous,
    ):
        for path in ("/jobs/overview", "/metrics", "/openapi.json", "/nothing"):
            answer = anonymous.get(path)
            assert refusal_reason(answer, 401) == "this address needs the token"
            assert str(token.file) not in answer.text
        assert anonymous.get("/jobs/overview", headers=bearer(token)).status_code == 200
        assert anonymous.get("/").status_code == anonymous.get("/static/main.js").status_code == 200


@pytest.mark.parametrize("length", ["-1", "1e9", "\N{FULLWIDTH DIGIT NINE}", "", "9" * 5000])
def test_a_length_that_is_none_is_refused(
    running: SparklessRun, tmp_path: Path, length: str
) -> None:
    token = Token.of(tmp_path)
    app = make_app(OnePipeline(running.served()), token, "127.0.0.1")
    sent = {"host": "localhost", "authorization": bearer(token)["Authorization"]}

    refusal = app.refusal("POST", CHANGES[0], {**sent, "content-length": length})

    assert refusal is not None
    assert refusal.status == 413


def test_loopback_addresses_are_distinguished_from_others() -> None:
    assert all(is_loopback(text) for text in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(text) for text in ("0.0.0.0", "::", "10.0.0.1", "example", ""))


def test_the_token_is_in_a_file_of_its_owner_alone_and_shown_by_nothing(tmp_path: Path) -> None:
    first, second = Token.of(tmp_path / "a"), Token.of(tmp_path / "b")
    assert first.file is not None
    assert second.file is not None
    secret = first.file.read_text().strip()

    assert stat.S_IMODE(first.file.stat().st_mode) == 0o600
    assert len(secret) > 40
    assert secret != second.file.read_text().strip()
    assert secret not in repr(first) + str(first) + first.hint
    assert first.accepts(f"Bearer {secret}")
    assert not second.accepts(f"Bearer {secret}")


def test_a_token_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a secret of my own")
    token = Token.of(tmp_path)

    assert (token.file, list(tmp_path.iterdir())) == (None, [])
    assert token.accepts("Bearer a secret of my own")
    assert "secret" not in token.hint
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(ConfigError, match="16 characters"):
        Token.of(tmp_path)

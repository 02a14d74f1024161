"""The server and the commands that start one: addresses, ports, and what others find of it."""

import json
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.cli.command import command, environment
from tests.cli.offline_store import OfflineStore
from tests.server.api_client import bearer
from tests.server.sparkless_run import SparklessRun
from tests.servers.ports import free_port
from tests.waiting import DEADLINE_S, wait_until

from cutwater.cli.commands.run import Serving
from cutwater.errors import ConfigError
from cutwater.server import serve_store
from cutwater.server.app import RunServer
from cutwater.server.auth import Token
from cutwater.server.uvicorn_server import Endpoint, bind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::1]:8080", ("::1", 8080)),
        ("driver.example:1", ("driver.example", 1)),
    ],
)
def test_an_address_is_a_port_with_or_without_a_host(text: str, expected: tuple[str, int]) -> None:
    found = Endpoint.of(text)
    assert (found.host, found.port, found.is_preference) == (*expected, False)


@pytest.mark.parametrize("text", ["", "http://x:1", "65536", "-1", "a b:1", "x:", "::1:8", "1:2:3"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--serve: .* is not \[HOST:\]PORT"):
        Endpoint.of(text)


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_and_a_wish_is_not() -> None:
    with bind(Endpoint(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind(Endpoint.of(str(port)))
        with pytest.raises(ConfigError, match="--serve"):
            Serving(str(port))
        with bind(Endpoint(port=port)) as another:
            assert another.getsockname()[1] != port


def test_a_run_that_is_not_to_be_served_is_not(running: SparklessRun) -> None:
    said: list[str] = []
    with Serving("off").serve(running, said.append):  # type: ignore[arg-type]
        assert said == []


def test_a_run_that_cannot_be_served_runs_all_the_same(running: SparklessRun) -> None:
    said: list[str] = []
    # A run without Spark has nothing from which a server could be made.
    with Serving("0").serve(running, said.append):  # type: ignore[arg-type]
        said.append("it runs")

    assert said[0].startswith("no dashboard: ")
    assert said[1:] == ["it runs"]


def test_a_token_that_is_too_short_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, running: SparklessRun
) -> None:
    monkeypatch.setenv("CUTWATER_TOKEN", "short")
    said: list[str] = []

    with pytest.raises(ConfigError, match="CUTWATER_TOKEN: a token has at least 16 characters"):
        Serving("0")
    with Serving("auto").serve(running, said.append):  # type: ignore[arg-type]
        assert said == ["no dashboard: a token has at least 16 characters"]


def test_a_run_whose_token_cannot_be_kept_is_ready_all_the_same(
    running: SparklessRun, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way of the token's directory")
    served = running.served()
    assert served.live is not None
    context = SimpleNamespace(
        scratch=tmp_path / "file" / "scratch",
        plan=running.plan,
        store=served.store,
        pipeline=served.store.pipeline,
        options=served.live.options,
        targets=served.live.targets,
    )
    running.context = context  # type: ignore[attr-defined]
    server = RunServer(bind(Endpoint(port=0)), "127.0.0.1")
    try:
        before = httpx.get(f"{server.url}readyz", timeout=DEADLINE_S)
        with pytest.raises(ConfigError, match="no token can be written"):
            server.show(running)  # type: ignore[arg-type]
        after = httpx.get(f"{server.url}readyz", timeout=DEADLINE_S)
    finally:
        server.server.stop()

    assert (before.status_code, before.json()) == (503, {"state": "STARTING"})
    assert (after.status_code, after.json()) == (200, {"state": "RUNNING"})


def test_a_stopped_server_gives_its_port_back(tmp_path: Path) -> None:
    stored = OfflineStore(tmp_path / "store")
    server, token = serve_store(stored.backend, tmp_path, Endpoint(port=0, is_preference=False))
    assert httpx.get(f"{server.url}jobs/overview", timeout=DEADLINE_S).status_code == 200

    server.stop()

    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    assert isinstance(token, Token)


def test_cutwater_ui_shows_a_store_until_it_is_interrupted(tmp_path: Path) -> None:
    stored = OfflineStore(tmp_path / "store")
    stored.writer.decide(1)
    ui = subprocess.Popen(
        command("ui", str(tmp_path / "store"), "--listen", "0", "--output", "json"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ui.stdout is not None
    said = json.loads(ui.stdout.readline())
    file = Path(said["token_file"])
    token = Token(file, b"")

    (job,) = httpx.get(f"{said['url']}jobs/overview", timeout=DEADLINE_S).json()["jobs"]
    stop = f"{said['url']}jobs/orders/stop"
    refused = httpx.post(stop, headers=bearer(token), timeout=DEADLINE_S)
    ui.send_signal(signal.SIGINT)
    _, errors = ui.communicate(timeout=DEADLINE_S)

    assert job["name"] == "orders"
    assert refused.status_code == 409
    assert (ui.returncode, errors) == (0, "")
    assert not file.exists()


def test_cutwater_ui_refuses_a_store_that_is_not_there(tmp_path: Path) -> None:
    result = subprocess.run(
        command("ui", str(tmp_path / "nowhere")),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "STORE" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_socket_of_another_family_is_shown_as_an_address(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    stored = OfflineStore(tmp_path / "store")
    try:
        server, _ = serve_store(stored.backend, tmp_path, Endpoint.of("[::1]:0"))
    except ConfigError:
        pytest.skip("this machine has no loopback address of IPv6")
    try:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}jobs/overview", timeout=DEADLINE_S).status_code == 200
    finally:
        server.stop()


BLOCKING = """
import pathlib, time

pathlib.Path("begun").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


def test_a_run_answers_probes_before_its_pipeline_is_even_loaded(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(BLOCKING)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    run = subprocess.Popen(
        command("run", "slow.py", "--serve", str(port)),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "begun").exists, "it loads its pipeline")
        live = httpx.get(f"{url}/livez", timeout=DEADLINE_S)
        ready = httpx.head(f"{url}/readyz", timeout=DEADLINE_S)
        refused = httpx.get(f"{url}/jobs/overview", timeout=DEADLINE_S)
    finally:
        (tmp_path / "go").touch()
        _, complaints = run.communicate(timeout=DEADLINE_S)

    assert (live.status_code, live.json()) == (200, {"state": "STARTING"})
    assert (ready.status_code, ready.content) == (503, b"")
    assert refused.status_code == 503
    assert run.returncode == 2
    assert "slow.py" in complaints

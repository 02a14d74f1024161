"""Behind nginx with TLS, as docs/how-to/serve-behind-a-proxy.md says: reached by its name only."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.cli.command import cutwater
from tests.server.api_client import bearer, refusal_reason, serve_app
from tests.server.sparkless_run import SparklessRun
from tests.servers.nginx import HOST, Proxy, proxy
from tests.servers.ports import free_port
from tests.waiting import DEADLINE_S, wait_until

from cutwater.errors import ConfigError
from cutwater.server.app import make_app
from cutwater.server.auth import Guard, PublicUrl, Token
from cutwater.server.pipelines import OnePipeline

STOP = "/jobs/orders/checkpoints"


@dataclass
class Behind:
    """A served pipeline behind nginx."""

    proxy: Proxy
    token: Token
    direct: str
    client: httpx.Client

    @property
    def origin(self) -> str:
        return f"https://{HOST}:{self.proxy.port}"

    def ask(self, method: str, path: str, **headers: str) -> httpx.Response:
        """Ask through the proxy, as a browser would that found it by its name."""
        return self.client.request(
            method,
            f"https://127.0.0.1:{self.proxy.port}/orders{path}",
            headers={"Host": f"{HOST}:{self.proxy.port}", **headers},
            json={} if method == "POST" else None,
            extensions={"sni_hostname": HOST},
        )


@pytest.fixture
def behind(running: SparklessRun, tmp_path: Path) -> Iterator[Behind]:
    port, token = free_port(), Token.of(tmp_path)
    public = PublicUrl.of(f"https://{HOST}:{port}/orders/")
    app = make_app(OnePipeline(running.served()), token, "127.0.0.1", public)
    with (
        serve_app(app) as url,
        proxy(tmp_path, urlsplit(url).port or 0, port) as made,
        httpx.Client(verify=made.trusted(), timeout=DEADLINE_S) as client,
    ):
        assert made.url == public.text
        yield Behind(made, token, url, client)


def test_the_page_and_a_change_go_through_the_proxy(behind: Behind, running: SparklessRun) -> None:
    owner = bearer(behind.token)
    page = behind.ask("GET", "/")
    script = behind.ask("GET", "/static/main.js")
    same = {"Origin": behind.origin, "Sec-Fetch-Site": "same-origin"}
    read = behind.ask("GET", "/jobs/overview", **owner, **same)
    changed = behind.ask("POST", STOP, **owner, **same)

    assert (page.status_code, script.status_code, read.status_code) == (200, 200, 200)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert 'src="static/main.js"' in page.text
    assert changed.status_code == 202
    wait_until(lambda: len(running.reports) == 1, "a checkpoint")
    assert behind.ask("GET", "/readyz").json() == {"state": "RUNNING"}


def test_neither_another_host_nor_another_origin_goes_through(
    behind: Behind, running: SparklessRun
) -> None:
    owner = bearer(behind.token)
    for origin in (
        "https://evil.example",
        f"https://{HOST}",
        behind.origin.replace("https", "http"),
        "null",
        "http://127.0.0.1:4080",
    ):
        assert refusal_reason(behind.ask("POST", STOP, **owner, Origin=origin), 403)
    assert refusal_reason(behind.ask("POST", STOP, **owner, Host="evil.example"), 403)
    assert refusal_reason(
        behind.ask("POST", STOP, **owner, **{"Sec-Fetch-Site": "cross-site"}), 403
    )
    assert running.reports == []


def test_a_request_through_the_proxy_needs_the_token_to_read(behind: Behind) -> None:
    for path in ("/jobs/overview", "/metrics", "/openapi.json"):
        refused = behind.ask("GET", path)
        assert refusal_reason(refused, 401) == "this address needs the token"
        assert str(behind.token.file) not in refused.text
        # Nor does it help to come from this machine: so does the proxy.
        assert httpx.get(f"{behind.direct.rstrip('/')}{path}").status_code == 401


def guarded(public: str, token: Token) -> Guard:
    return make_app(OnePipeline(), token, "127.0.0.1", PublicUrl.of(public))


@pytest.mark.parametrize(
    ("public", "host", "origin", "passes"),
    [
        ("https://cut.example", "cut.example", "https://cut.example", True),
        ("https://cut.example:443/", "CUT.example:443", "https://CUT.example", True),
        ("https://cut.example", "127.0.0.1:4080", "https://cut.example", True),
        ("https://cut.example", "127.0.0.1:4080", "http://127.0.0.1:4080", True),
        ("https://localhost:8443", "localhost:4080", "http://localhost:4080", True),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443", "https://[2001:db8::1]:8443", True),
        ("https://cut.example", "cut.example", "http://cut.example", False),
        ("https://cut.example", "cut.example", "https://cut.example:8443", False),
        ("https://cut.example", "cut.example", "https://www.cut.example", False),
        ("https://cut.example", "www.cut.example", "https://cut.example", False),
        ("https://cut.example", "cut.example.evil", "https://cut.example.evil", False),
    ],
)
def test_a_public_address_adds_one_host_and_one_origin(
    tmp_path: Path, public: str, host: str, origin: str, *, passes: bool
) -> None:
    token = Token.of(tmp_path)
    headers = {"host": host, "origin": origin, "authorization": bearer(token)["Authorization"]}

    refusal = guarded(public, token).refusal("GET", "/jobs/overview", headers)

    assert (refusal is None) == passes
    assert refusal is None or refusal.status == 403


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cut.example",
        "ftp://cut.example",
        "https://",
        "https://me:secret@cut.example/",
        "https://cut.example/?x=1",
        "https://cut.example/#x",
        "https://cut.example:99999/",
        "https://[::1/",
        "https://a b/",
    ],
)
def test_what_is_no_public_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--public-url: .*such as https://"):
        PublicUrl.of(text)


def test_a_public_address_ends_in_a_slash_and_leaves_the_usual_port_out() -> None:
    found = PublicUrl.of(" HTTPS://Cut.Example:443/orders ")

    assert found == ("https://cut.example/orders/", "cut.example", "cut.example", found.origin)
    assert found.origin == "https://cut.example"


def test_a_command_refuses_what_is_no_public_address_before_it_does_anything(
    tmp_path: Path,
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    run = cutwater("run", "nothing.py", "--serve", port, "--public-url", "x", cwd=tmp_path)

    assert run.returncode == 2
    assert "--public-url: 'x' is not an address" in run.stderr

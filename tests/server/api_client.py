"""HTTP clients of an application on a local socket, with and without its token."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.waiting import DEADLINE_S, wait_until

from cutwater.server.auth import Guard, Token
from cutwater.server.uvicorn_server import Endpoint, Server, bind

Json = Any


@dataclass
class ApiClient:
    """A client without a token, and one that sends it."""

    anonymous: httpx.Client
    owner: httpx.Client

    def json(self, path: str, status: int = 200) -> Json:
        """Return the JSON at a path, requested without the token."""
        answer = self.anonymous.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    def refusal(self, path: str, status: int) -> str:
        """Request a path that is refused; return the reason."""
        return refusal_reason(self.anonymous.get(path), status)

    def complete_operation(self, path: str, body: Json, answers: str) -> Json:
        """Request an operation, wait until it is completed, and return its result."""
        asked = self.owner.post(path, json=body)
        assert asked.status_code == 202, asked.text
        where = f"{answers}/{asked.json()['request-id']}"
        wait_until(lambda: self.json(where)["status"]["id"] == "COMPLETED", "it is over")
        return self.json(where)["operation"]


def refusal_reason(answer: httpx.Response, status: int) -> str:
    """Return why a request was refused; there is always a reason."""
    assert answer.status_code == status, answer.text
    (text, *_) = answer.json()["errors"]
    assert text
    return str(text)


@contextmanager
def serve_app(app: Guard) -> Iterator[str]:
    """Serve an application on a free port and yield its address."""
    server = Server(app, bind(Endpoint(port=0)), "127.0.0.1")
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def connect_clients(app: Guard, token: Token) -> Iterator[ApiClient]:
    with (
        serve_app(app) as url,
        httpx.Client(base_url=url, timeout=DEADLINE_S) as anonymous,
        httpx.Client(base_url=url, timeout=DEADLINE_S, headers=bearer(token)) as owner,
    ):
        yield ApiClient(anonymous, owner)


def bearer(token: Token) -> dict[str, str]:
    """Return the header that carries a token."""
    assert token.file is not None
    return {"Authorization": f"Bearer {token.file.read_text().strip()}"}

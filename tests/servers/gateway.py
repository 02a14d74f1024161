"""A gateway between a client and an S3 server, over real sockets, that does harm as told.

Gateways in the field drop headers they do not know, answer for a server that is busy, and lose
answers. This one does each of them on purpose, request by request.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = Callable[["Request"], bool]
"""Does harm to a request; returns whether it is answered as usual afterwards."""


@dataclass
class Request:
    """A request on its way through."""

    handler: BaseHTTPRequestHandler
    server_port: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def forwarded(self) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        connection.request(self.method, self.path, self.body, self.headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), content

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.handler.send_response_only(status)
        length = dict(headers).get("Content-Length", "0")
        for name, value in headers:
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.handler.send_header(name, value)
        is_head = self.method == "HEAD"
        self.handler.send_header("Content-Length", length if is_head else str(len(content)))
        self.handler.end_headers()
        self.handler.wfile.write(content)


def lose_the_answer(request: Request) -> bool:
    """Let the server act, and hang up on the client."""
    request.forwarded()
    return hang_up(request)


def hang_up(request: Request) -> bool:
    """Close the connection without an answer."""
    request.handler.close_connection = True
    return False


def answer(status: int, content: bytes = b"") -> Fault:
    """Answer without asking the server."""

    def fault(request: Request) -> bool:
        request.answer(status, [], content)
        return False

    return fault


def wait_for(event: threading.Event) -> Fault:
    """Answer nothing until an event; then hang up."""

    def fault(request: Request) -> bool:
        event.wait(30)
        return hang_up(request)

    return fault


def ignore_conditions(request: Request) -> bool:
    """Drop the header that makes a put conditional, like a gateway that does not know it."""
    request.headers.pop("if-none-match", None)
    return True


def refuse_large_copies(bytes_max: int) -> Fault:
    """Refuse to copy an object of more bytes with one request, as S3 does above 5 GiB."""

    def fault(request: Request) -> bool:
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            return True
        looked = replace(
            request,
            method="HEAD",
            headers=dict(request.headers),
            path=f"/{source.lstrip('/')}",
            body=b"",
        )
        del looked.headers["x-amz-copy-source"]
        status, headers, _ = looked.forwarded()
        assert status == 200, f"{source}: {status}"
        size_bytes = int(dict(headers)["Content-Length"])
        if size_bytes <= bytes_max:
            return True
        reason = f"larger than the maximum allowable size for a copy source: {bytes_max}"
        message = f"<Message>The specified copy source is {reason}</Message>"
        content = f"<Error><Code>InvalidRequest</Code>{message}</Error>".encode()
        request.answer(400, [("Content-Type", "application/xml")], content)
        return False

    return fault


@dataclass
class Gateway:
    """What the next requests of each method meet; those without a fault pass."""

    port: int = 0
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    always: Fault | None = None
    seen: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def harm(self, method: str, *faults: Fault) -> None:
        """Let the next requests of a method meet these faults, in order."""
        self.faults.setdefault(method, deque()).extend(faults)

    def pass_on(self, request: Request) -> None:
        self.seen.append(f"{request.method} {request.path}")
        waiting = self.faults.get(request.method)
        fault = waiting.popleft() if waiting else self.always
        if fault is None or fault(request):
            request.answer(*request.forwarded())


@contextmanager
def gateway_to(server_port: int) -> Iterator[Gateway]:
    """Run a gateway on a free port."""
    gateway = Gateway()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self, server_port, self.command, self.path, headers, body)
            gateway.pass_on(request)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Say nothing: clients that are killed hang up."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gateway.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

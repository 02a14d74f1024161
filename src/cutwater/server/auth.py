"""Who may ask: the check in front of every request, before any of our code sees it.

Bound to a loopback address, reading is open and changing needs the token; bound to any other
address, or behind a proxy with a public address, everything but the dashboard's own files and the
probes needs it. A page of another site must not reach a server on this machine: neither by a name
that it lets resolve to 127.0.0.1 (the Host header is checked), nor by a request that the browser
sends for it (Origin and Sec-Fetch-Site are). No answer ever allows another origin to read it.
"""

import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from cutwater.server.public_url import PublicUrl
from cutwater.server.token import Token

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX: Final = 64 * 1024
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_STATIC: Final = ("/static/", "/favicon.ico")
PROBES: Final = frozenset({"/livez", "/readyz"})
"""What a supervisor of processes asks, without a token: they tell a state and nothing else."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    reason: str
    next_step: str = ""


_STARTING: Final = Refusal(
    503, "the pipeline has not started yet", "Ask /readyz until it is ready, and then again."
)


class TooLong(HTTPException):
    """The body of a request is longer than anything that can be asked for."""

    def __init__(self) -> None:
        """Say how long it may be."""
        super().__init__(413, f"a body has at most {BODY_BYTES_MAX} bytes")


def is_loopback(host: str) -> bool:
    """Say whether an address that is bound to can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands in front of an application."""

    def __init__(
        self, app: App, token: Token | None, host: str, public_url: PublicUrl | None = None
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            token: What changes need; None if there is no token yet (`admit`).
            host: The address that the server is bound to.
            public_url: The address of a proxy in front of it; None if there is none.
        """
        self._app = app
        self._token = token
        self._is_local = is_loopback(host)
        # Through a proxy anyone may come, wherever the server is bound to.
        self._is_open = self._is_local and public_url is None
        self._names = _LOOPBACK_NAMES | {host} | ({public_url.host} if public_url else set())
        self._public = public_url

    def admit(self, token: Token) -> None:
        """Begin to answer more than probes: there is something to show, and this is the token."""
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        refusal = self.refusal(scope["method"], scope["path"], headers)
        guarded = _with_headers(send)
        if scope["method"] == "HEAD":
            # Answered like a GET, by everything that answers one.
            scope, guarded = {**scope, "method": "GET"}, _without_body(guarded)
        if refusal is not None:
            await _refuse(guarded, refusal)
            return
        await self._app(scope, _bounded(receive), guarded)

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> Refusal | None:
        """Say why a request is refused; None if it may pass.

        Args:
            method: Its method.
            path: Its path, decoded.
            headers: Its headers, by lower-case name.
        """
        strange = self._strange(path, headers)
        if strange is not None:
            return strange
        reads = method in _READING
        is_free = path == "/" or path.startswith(_STATIC) or path in PROBES
        if self._token is None:
            # Without a token nothing can be checked, and there is nothing to show yet.
            return None if reads and is_free else _STARTING
        needs_token = not reads or not (self._is_open or is_free)
        if needs_token and not self._token.accepts(headers.get("authorization")):
            what = "this address needs the token" if reads else "changing needs the token"
            step = f"Send it as `Authorization: Bearer TOKEN`; {self._token.hint}."
            return Refusal(401, what, step if self._is_open else "")
        if not reads:
            return _unfit(headers)
        return None

    def _strange(self, path: str, headers: dict[str, str]) -> Refusal | None:
        """Refuse what a page of another site may have sent."""
        host = headers.get("host", "")
        if self._is_local and _host_name(host) not in self._names:
            return Refusal(403, "the Host header is not an address of this machine")
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin.lower(), host.lower()):
            return Refusal(403, "requests of other origins are not answered")
        site = headers.get("sec-fetch-site", "none")
        opens_page = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if site not in {"none", "same-origin"} and not opens_page:
            return Refusal(403, "requests of other sites are not answered")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Say whether a request comes from a page of this server."""
        if self._public is not None and (
            origin == self._public.origin or host == self._public.authority
        ):
            # Not by the other scheme: such a page may come from whoever is on the way.
            return origin == self._public.origin
        return _authority(origin) == host


def _unfit(headers: dict[str, str]) -> Refusal | None:
    """Refuse a body that cannot be what is asked for."""
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:19]) > BODY_BYTES_MAX:
        return Refusal(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = length != "0" or "transfer-encoding" in headers
    if has_body and kind != "application/json":
        return Refusal(415, "a body is JSON, with the content type application/json")
    return None


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        # Of a header that is sent twice, both are seen: neither hides behind the other.
        text = value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _authority(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    return rest.lower() if scheme in {"http", "https"} else ""


def _bounded(receive: Receive) -> Receive:
    """Count what comes, whatever its header has said."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_BYTES_MAX:
            raise TooLong
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sent


def _without_body(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sent


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps(
        {"errors": [refusal.reason], "code": "", "next_step": refusal.next_step}
    ).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        # The body was not read: what follows on this connection would be taken for a request.
        (b"connection", b"close"),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="cutwater"'))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""Access control: the token, and the check of every request before any other code sees it.

On a loopback address, reading is open and changing needs the token. On any other address, or with a
public address of a proxy, everything except the dashboard's own files and the probes needs it. A
page of another site must not reach a server on this machine: neither by a name that resolves to
127.0.0.1 (the Host header is checked), nor by a request that the browser sends on its behalf
(Origin and Sec-Fetch-Site are checked). No response ever allows another origin to read it.

The token comes from the environment, or is generated and written to a file that only its owner can
read. It is never logged, never part of an address, and compared in constant time.
"""

import hashlib
import hmac
import ipaddress
import json
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from cutwater.errors import ConfigError
from cutwater.server.public_url import PublicUrl

VARIABLE: Final = "CUTWATER_TOKEN"
FILE_NAME: Final = "api-token"
_LENGTH_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        file: Where people find it; None if it came from the environment.
        digest: Its hash, which is all that is kept in memory beside the secret's own copy.
    """

    file: Path | None
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, directory: Path) -> "Token":
        """Return the token of the environment, or make one in a file in a directory.

        Raises:
            ConfigError: If the one of the environment is too short, or no file can be written.
        """
        given = token_from_environment()
        if given is not None:
            return cls(None, _digest(given))
        made = secrets.token_urlsafe(32)
        path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Created with that mode, never wider for a moment; a stranger's file is not reused.
            path.unlink(missing_ok=True)
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(made + "\n")
        except OSError as error:
            reason = f"no token can be written to {path}: {error.strerror}"
            raise ConfigError("serve", reason) from error
        return cls(path, _digest(made))

    @property
    def hint(self) -> str:
        """Where people find it, as a sentence."""
        if self.file is None:
            return f"the token is the one of the environment variable {VARIABLE}"
        return f"the token is in {self.file}"

    def accepts(self, authorization: str | None) -> bool:
        """Say whether a request's Authorization header carries the token."""
        scheme, _, given = (authorization or "").partition(" ")
        # Hashed first, so that not even the length can be found by trying.
        is_same = hmac.compare_digest(_digest(given.strip()), self.digest)
        return scheme.lower() == "bearer" and is_same


def token_from_environment() -> str | None:
    """Return the token of the environment; None if there is none.

    Raises:
        ConfigError: If it is too short.
    """
    given = os.environ.get(VARIABLE)
    if given is not None and len(given) < _LENGTH_MIN:
        raise ConfigError(VARIABLE, f"a token has at least {_LENGTH_MIN} characters")
    return given


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


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
        await self._app(scope, _limit_body(receive), guarded)

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> Refusal | None:
        """Say why a request is refused; None if it may pass.

        Args:
            method: Its method.
            path: Its path, decoded.
            headers: Its headers, by lower-case name.
        """
        refusal = self._check_sender(path, headers)
        if refusal is not None:
            return refusal
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
            return _check_body(headers)
        return None

    def _check_sender(self, path: str, headers: dict[str, str]) -> Refusal | None:
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


def _check_body(headers: dict[str, str]) -> Refusal | None:
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


def _limit_body(receive: Receive) -> Receive:
    """Count what comes, whatever its header has said."""
    seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_BYTES_MAX:
            raise TooLong
        return message

    return receive_limited


def _with_headers(send: Send) -> Send:
    async def send_changed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return send_changed


def _without_body(send: Send) -> Send:
    async def send_changed(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_changed


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

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

VARIABLE: Final = "CUTWATER_TOKEN"
FILE_NAME: Final = "api-token"
_LENGTH_MIN: Final = 16
_PORTS: Final = {"http": 80, "https": 443}
_EXAMPLE: Final = "such as https://pipelines.example/orders/"


class PublicUrl(NamedTuple):
    """The address of a proxy in front of the server, as users and browsers know it.

    A proxy adds TLS and forwards requests to the server's own port. A browser sends the proxy's
    address as Host and Origin, and the server refuses unknown values.

    Attributes:
        host: Its host, in lower case, without a port.
        authority: Host and port as a browser sends them: without the scheme's own port.
        origin: Scheme and authority, as a browser sends them.
    """

    text: str
    host: str
    authority: str
    origin: str

    @classmethod
    def of(cls, text: str, option: str = "--public-url") -> "PublicUrl":
        """Parse an address; a `ConfigError` if it is not that of a proxy."""
        try:
            found = urlsplit(text.strip())
            host, port = (found.hostname or "").lower(), found.port
        except ValueError as error:
            raise ConfigError(option, f"{text!r} is not an address, {_EXAMPLE}: {error}") from error
        if found.scheme not in _PORTS or not host or not host.isascii() or " " in found.netloc:
            raise ConfigError(option, f"{text!r} is not an address, {_EXAMPLE}")
        if found.username is not None or found.query or found.fragment:
            reason = f"{text!r} has more than scheme, host, port and path; write one {_EXAMPLE}"
            raise ConfigError(option, reason)
        name = f"[{host}]" if ":" in host else host
        authority = name if port in {None, _PORTS[found.scheme]} else f"{name}:{port}"
        origin = f"{found.scheme}://{authority}"
        return cls(f"{origin}{found.path.rstrip('/')}/", host, authority, origin)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its hash, and the file that holds it unless it came from the environment."""

    file: Path | None
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, directory: Path) -> "Token":
        """Return the token of the environment, or generate one and write it to a directory.

        Raises:
            ConfigError: If the environment's token is too short, or no file can be written.
        """
        given = token_from_environment()
        if given is not None:
            return cls(None, _digest(given))
        made = secrets.token_urlsafe(32)
        path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Created with mode 0600, never wider; an existing file is not reused.
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
        """Where users find it, as a clause."""
        if self.file is None:
            return f"the token is the one of the environment variable {VARIABLE}"
        return f"the token is in {self.file}"

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an Authorization header carries the token."""
        scheme, _, given = (authorization or "").partition(" ")
        # Hashed first, so that the time reveals not even the length.
        is_same = hmac.compare_digest(_digest(given.strip()), self.digest)
        return scheme.lower() == "bearer" and is_same


def token_from_environment() -> str | None:
    """Return the token of the environment; None if there is none."""
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
"""The probes of a process supervisor. They need no token, and return only a state."""
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
    """Why a request is refused."""

    status: int
    reason: str
    next_step: str = ""


_STARTING: Final = Refusal(
    503, "the pipeline has not started yet", "Poll /readyz until it is ready, and try again."
)


class TooLong(HTTPException):
    """The body of a request is too long."""

    def __init__(self) -> None:
        super().__init__(413, f"a body has at most {BODY_BYTES_MAX} bytes")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware that checks every request to an application."""

    def __init__(
        self, app: App, token: Token | None, host: str, public_url: PublicUrl | None = None
    ) -> None:
        """Guard an application; without a token it accepts only probes (`admit`)."""
        self._app = app
        self._token = token
        self._is_local = is_loopback(host)
        # A proxy forwards requests from other machines, whatever address the server has.
        self._is_open = self._is_local and public_url is None
        self._names = _LOOPBACK_NAMES | {host} | ({public_url.host} if public_url else set())
        self._public = public_url

    def admit(self, token: Token) -> None:
        """Accept all requests from now on, with this token, and no longer only probes."""
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        refusal = self.refusal(scope["method"], scope["path"], headers)
        guarded = _with_headers(send)
        if scope["method"] == "HEAD":
            # Handled like a GET, by every handler of a GET.
            scope, guarded = {**scope, "method": "GET"}, _without_body(guarded)
        if refusal is not None:
            await _refuse(guarded, refusal)
            return
        await self._app(scope, _limit_body(receive), guarded)

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> Refusal | None:
        """Return why a request is refused; the path is decoded, and header names are lower-case."""
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
        """Refuse requests that a page of another site may have sent."""
        host = headers.get("host", "")
        if self._is_local and _host_name(host) not in self._names:
            return Refusal(403, "the Host header is not an address of this machine")
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin.lower(), host.lower()):
            return Refusal(403, "requests from other origins are refused")
        site = headers.get("sec-fetch-site", "none")
        opens_page = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if site not in {"none", "same-origin"} and not opens_page:
            return Refusal(403, "requests from other sites are refused")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether a request comes from a page of this server."""
        if self._public is not None and (
            origin == self._public.origin or host == self._public.authority
        ):
            # Not by the other scheme: such a page may come from an attacker on the network.
            return origin == self._public.origin
        return _authority(origin) == host


def _check_body(headers: dict[str, str]) -> Refusal | None:
    """Refuse a body that is too long or not JSON."""
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
        # Both values of a repeated header are kept: neither hides the other.
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
    """Count the bytes of the body, whatever its Content-Length says."""
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
        # The body was not read: the rest of it would be parsed as the next request.
        (b"connection", b"close"),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="cutwater"'))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

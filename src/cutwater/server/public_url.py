"""The address of a proxy in front of the server, as users and browsers know it.

A proxy adds TLS and forwards requests to the server's own port. The server must know the proxy's
address, because a browser sends it as Host and Origin, and unknown values are refused.
"""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cutwater.errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}
_EXAMPLE: Final = "such as https://pipelines.example/orders/"


class PublicUrl(NamedTuple):
    """The address of a proxy.

    Attributes:
        text: The address, ending in a slash.
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
        """Parse an address.

        Raises:
            ConfigError: If it is not the address of a proxy.
        """
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

"""Connection strings of PostgreSQL databases, without disclosing the password.

A connection string is given as text, as `env:NAME`, or by a function. It is resolved where it is
used and written nowhere: a store, a plan or an error may show `place`, and every text that comes
from the server or its library goes through `redact`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from cutwater.errors import ConfigError

GivenDsn = str | Callable[[], str]

_ENVIRONMENT: Final = "env:"
_SECRET: Final = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key"})
_STORED: Final = ("host", "hostaddr", "port", "dbname", "user", "sslmode", "sslrootcert", "service")
_DEFAULTS: Final = {
    "connect_timeout": "10",
    # A broken connection ends within half a minute, and the work is repeated.
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "client_encoding": "UTF8",
    "application_name": "cutwater",
}


@dataclass(frozen=True, slots=True)
class Dsn:
    """A connection string as the user has given it; its representation shows nothing of it."""

    given: GivenDsn = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse values that cannot be a connection string."""
        if not callable(self.given) and not isinstance(self.given, str):
            raise ConfigError("dsn", "is neither a text nor a function that returns one")
        if self.given in {"", _ENVIRONMENT}:
            raise ConfigError("dsn", "is empty; write env:NAME, a connection string or a function")

    @property
    def text(self) -> str:
        """The connection string itself; only for connecting."""
        if callable(self.given):
            try:
                found = self.given()
            except Exception as error:  # noqa: BLE001 - its message may hold the secret
                reason = f"the function that gives it raised {type(error).__name__}"
                raise ConfigError("dsn", reason) from None
            if not isinstance(found, str):
                raise ConfigError("dsn", "the function that gives it returned no text")
            return found
        if not self.given.startswith(_ENVIRONMENT):
            return self.given
        name = self.given.removeprefix(_ENVIRONMENT)
        if not os.environ.get(name):
            raise ConfigError("dsn", f"the environment has no {name}")
        return os.environ[name]

    @property
    def parameters(self) -> dict[str, str]:
        """Everything to connect with, defaults included."""
        return {**_DEFAULTS, **self._parse()}

    def _parse(self) -> dict[str, str]:
        from psycopg import ProgrammingError  # noqa: PLC0415 - an extra
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - an extra

        try:
            found = conninfo_to_dict(self.text)
        except ProgrammingError:
            # The library's own words quote the string.
            reason = "is no connection string; write postgresql://user@host/database"
            raise ConfigError(
                "dsn", f"{reason}, with reserved characters percent-encoded"
            ) from None
        return {name: str(value) for name, value in found.items() if value is not None}

    @property
    def place(self) -> str:
        """Name the database for users and stores, without user name and secrets."""
        found = self._parse()
        host = found.get("host") or found.get("hostaddr") or os.environ.get("PGHOST", "localhost")
        port = found.get("port") or os.environ.get("PGPORT", "5432")
        user = found.get("user") or os.environ.get("PGUSER", "")
        database = found.get("dbname") or os.environ.get("PGDATABASE") or user
        return f"postgresql://{quote(host, safe=',')}:{port}/{quote(database, safe='')}"

    def stored(self) -> str | None:
        """Return how to connect again without the user's file; None if only the file knows.

        A password is left out: PGPASSWORD or a password file has to supply it.
        """
        if callable(self.given):
            return None
        if self.given.startswith(_ENVIRONMENT):
            return self.given
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - an extra

        found = self._parse()
        return make_conninfo("", **{name: found[name] for name in _STORED if name in found})


def redact(text: str, parameters: Mapping[str, str], dsn: str = "") -> str:
    """Return a text without any secret of a connection."""
    secrets = {value for name, value in parameters.items() if name in _SECRET and value}
    secrets |= {quote(secret, safe="") for secret in secrets} | ({dsn} if dsn else set())
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text

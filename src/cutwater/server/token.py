"""The token that changes need: where it comes from, and whether one that was sent is the one.

It comes from the environment, or is made anew and written to a file that only its owner can read.
It is never logged, never part of an address, and compared in constant time.
"""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cutwater.errors import ConfigError

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
        given = given_token()
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


def given_token() -> str | None:
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

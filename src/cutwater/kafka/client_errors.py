"""Why a client of librdkafka cannot reach its broker.

A call that fails then says only that the broker does not answer. The client knows more: a wrong
password, a certificate that is not trusted, a name without an address. It tells this in the
background, to `note`, when it is polled.
"""

import re
import time
from typing import Final, Protocol, runtime_checkable

_CAUSES: Final = frozenset({"_AUTHENTICATION", "_SSL", "_RESOLVE"})
_UNREACHABLE: Final = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_DESTROY", "_PARTIAL"}
)
_VALID_S: Final = 90.0
_DETAIL: Final = re.compile(r" \(after \d+ms in state \w+.*\)$")


@runtime_checkable
class ClientError(Protocol):
    """What an error of confluent-kafka is used for here."""

    def name(self) -> str:
        """Return its code as a word, such as `_TRANSPORT`."""
        ...

    def str(self) -> str:
        """Return what happened."""
        ...


class PolledClient(Protocol):
    """A client, of whatever kind, that tells its errors when it is polled."""

    def poll(self, timeout: float, /) -> object:
        """Call what waits to be called; 0 does not wait for more."""
        ...


class ClientErrors:
    """What the clients of one broker have told. May be used by any thread."""

    def __init__(self) -> None:
        self._told = ("", 0.0)

    def note(self, error: ClientError) -> None:
        """Remember an error that is a cause; given to clients as `error_cb`."""
        if error.name() in _CAUSES:
            self._told = (_DETAIL.sub("", error.str()), time.monotonic())

    def cause_since(self, start_s: float, *clients: PolledClient | None) -> str:
        """Return the newest cause, if a client has told it since a time; "" otherwise."""
        for client in clients:
            if client is not None:
                client.poll(0)
        cause, at_s = self._told
        return cause if at_s > start_s else ""

    def reason(self, error: Exception, *clients: PolledClient | None) -> str:
        """Return what an error of a client means, as part of a sentence."""
        found: object = error.args[0] if error.args else error
        told = found if isinstance(found, ClientError) else None
        if isinstance(error, TimeoutError) or (told and told.name() in _UNREACHABLE):
            cause = self.cause_since(time.monotonic() - _VALID_S, *clients)
            if cause:
                return cause
        text = told.str() if told else str(found)
        return text.strip().rstrip(".") or type(error).__name__

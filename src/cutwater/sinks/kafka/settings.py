"""How clients connect to Kafka: the user's options, without disclosing a secret.

Options have the names of librdkafka, such as `security.protocol` and `ssl.ca.location`. A value
`env:NAME` is a variable of the driver's environment. It is resolved when a client is created and
written nowhere. An option that holds a secret has no other form, so that neither a store nor a plan
can show it. Options that exactly once depends on belong to the sink.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cutwater.errors import ConfigError
from cutwater.kafka.client_errors import ClientErrors, PolledClient

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

ENVIRONMENT: Final = "env:"
_SECRET: Final = ("secret", "password", "passphrase", "key.pem", "sasl.oauthbearer.config")
"""The ends of the names of options that hold a secret."""
_OWN: Final = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "auto.offset.reset",
        "group.id",
        "isolation.level",
        "metadata.broker.list",
        "request.required.acks",
        "transactional.id",
    }
)
_OF_PRODUCERS: Final = (
    "batch.",
    "compression.",
    "delivery.timeout.ms",
    "linger.ms",
    "message.",
    "partitioner",
    "queue.buffering.",
    "sticky.",
    "transaction.",
)
_TIMEOUT: Final = "transaction.timeout.ms"
_TIMEOUT_MS: Final = "60000"
_COMMON: Final = {"log_level": 0, "socket.keepalive.enable": True}
_PRODUCING: Final = {
    # The partition of a key is the one that Java's clients, and Spark's own sink, choose.
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 65_536,
    "linger.ms": 20,
    _TIMEOUT: _TIMEOUT_MS,
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The broker's address and the options of clients, as the user has given them."""

    bootstrap: str
    options: Mapping[str, str] = field(default_factory=dict)
    errors: ClientErrors = field(
        default_factory=ClientErrors, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse what would break exactly once, and secrets in plain text."""
        if not self.bootstrap.strip():
            raise ConfigError("bootstrap", "is empty; write host:port, or several with commas")
        for name, value in self.options.items():
            if name in _OWN:
                raise ConfigError("options", f"{name} is set by the sink; leave it out")
            if name.endswith(_SECRET) and not value.startswith(ENVIRONMENT):
                raise ConfigError("options", f"{name} is a secret; write env:NAME")
        timeout = self.options.get(_TIMEOUT, _TIMEOUT_MS)
        if not timeout.isdecimal() or int(timeout) < 1000:
            raise ConfigError("options", f"{_TIMEOUT} is {timeout!r}; at least 1000 is needed")

    @property
    def transaction_s(self) -> float:
        """How long a transaction may last before the broker aborts it."""
        return int(self.options.get(_TIMEOUT, _TIMEOUT_MS)) / 1000

    def producer(self, transactional_id: str) -> "Producer":
        from confluent_kafka import Producer  # noqa: PLC0415 - an extra

        return Producer(self.producer_config(transactional_id))

    def producer_config(self, transactional_id: str) -> dict[str, object]:
        """Return everything that a producer is created with, secrets included."""
        chosen = {"transactional.id": transactional_id, "delivery.report.only.error": True}
        return {**self._common, **_PRODUCING, **self._resolved(for_producer=True), **chosen}

    @property
    def _common(self) -> dict[str, Any]:
        return {**_COMMON, "error_cb": self.errors.note}

    def consumer(self) -> "Consumer":
        """Return a reader of committed records, which belongs to no group."""
        from confluent_kafka import Consumer  # noqa: PLC0415 - an extra

        chosen = {
            "group.id": "cutwater",  # required by the client and never used: no offset is committed
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        found: dict[str, Any] = self._resolved(for_producer=False)
        return Consumer({**self._common, **found, **chosen})

    def admin(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

        return AdminClient({**self._common, **self._resolved(for_producer=False)})

    def _resolved(self, *, for_producer: bool) -> dict[str, str]:
        found = {
            name: resolve(name, value)
            for name, value in self.options.items()
            if for_producer or not name.startswith(_OF_PRODUCERS)
        }
        return {**found, "bootstrap.servers": self.bootstrap}

    def reason(self, error: Exception, *clients: PolledClient | None) -> str:
        """Return why a call of one of these clients failed, as part of a sentence; no secrets."""
        return self.redact(self.errors.reason(error, *clients))

    def redact(self, text: str) -> str:
        """Return a text without any value that comes from the environment."""
        given = [value for value in self.options.values() if value.startswith(ENVIRONMENT)]
        secrets = {os.environ.get(value.removeprefix(ENVIRONMENT)) or "" for value in given} - {""}
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def resolve(name: str, value: str) -> str:
    """Return the value of an option; ConfigError if it names a variable that is not set."""
    if not value.startswith(ENVIRONMENT):
        return value
    variable = value.removeprefix(ENVIRONMENT)
    if not os.environ.get(variable):
        raise ConfigError("options", f"{name}: the environment has no {variable}")
    return os.environ[variable]

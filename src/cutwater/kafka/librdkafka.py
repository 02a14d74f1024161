"""A broker as commands ask it, without Spark: by the package confluent-kafka, extra `kafka`.

A manifest names the servers and holds no secret. What else a connection needs comes from the
environment of the command, each setting of librdkafka as a variable of its own:

    CUTWATER_KAFKA_SECURITY_PROTOCOL=SASL_SSL    security.protocol
    CUTWATER_KAFKA_SASL_PASSWORD=…               sasl.password
    CUTWATER_KAFKA_BOOTSTRAP_SERVERS=…           other servers than those of the manifest

Nothing of this is logged or stored.
"""

import base64
import importlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from cutwater.errors import SourceUnavailable
from cutwater.kafka.broker import Bounds, Broker, known_ids
from cutwater.kafka.client_errors import ClientErrors
from cutwater.kafka.offsets import TopicPartition

PREFIX: Final = "CUTWATER_KAFKA_"
_TIMEOUT_S: Final = 10.0
_SERVERS: Final = "bootstrap.servers"
_MISSING: Final = "confluent-kafka is not installed: pip install 'cutwater[kafka]'"

Key = TypeVar("Key")

OpenBroker = Callable[[str], Broker]
"""Opens a connection to servers, as `host:port,host:port`."""


def open_broker(servers: str, environ: Mapping[str, str] = os.environ) -> Broker:
    """Connect to a broker; SourceUnavailable if that is impossible. Closed by the caller."""
    settings = {_SERVERS: servers} | _from_environment(environ)
    try:
        return _Librdkafka(importlib.import_module("confluent_kafka"), settings)
    except ImportError:
        raise SourceUnavailable(servers, _MISSING) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(PREFIX)
    }


class _Librdkafka:
    """The port `Broker`, by confluent-kafka's client for administration."""

    def __init__(self, package: Any, settings: Mapping[str, str]) -> None:  # noqa: ANN401
        self._package = package
        self._servers = settings[_SERVERS]
        self._errors = ClientErrors()
        self._admin_module = importlib.import_module("confluent_kafka.admin")
        # Its log would go to standard error, besides the error that the call raises.
        quiet = {"log_level": 0, "socket.connection.setup.timeout.ms": int(_TIMEOUT_S * 1000)}
        try:
            told = {"error_cb": self._errors.note}
            self._admin = self._admin_module.AdminClient({**settings, **quiet, **told})
        except (package.KafkaException, ValueError) as error:
            raise SourceUnavailable(self._servers, self._errors.reason(error)) from None

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        named = self._package.TopicCollection(sorted(topics))
        futures = self._admin.describe_topics(named, request_timeout=_TIMEOUT_S)
        found = self._results(futures.items())
        return known_ids(
            {topic: _id_text(description.topic_id) for topic, description in found.items()}
        )

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        spec = self._admin_module.OffsetSpec
        first, end = self._list(partitions, spec.earliest()), self._list(partitions, spec.latest())
        return {
            partition: Bounds(first[partition], end[partition])
            for partition in sorted(first.keys() & end.keys())
        }

    def close(self) -> None:
        """Drop the client: it ends its threads when it is collected."""
        self._admin = None

    def _list(
        self,
        partitions: Collection[TopicPartition],
        spec: Any,  # noqa: ANN401
    ) -> dict[TopicPartition, int]:
        wanted = {self._package.TopicPartition(*partition): spec for partition in partitions}
        if not wanted:
            return {}
        futures = self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S)
        named = (
            (TopicPartition(key.topic, key.partition), found) for key, found in futures.items()
        )
        return {partition: int(result.offset) for partition, result in self._results(named).items()}

    def _results(self, futures: Iterable[tuple[Key, "Future[Any]"]]) -> dict[Key, Any]:
        """Wait for the answers; what does not exist is left out."""
        found = {}
        for key, future in futures:
            try:
                found[key] = future.result(2 * _TIMEOUT_S)
            except self._package.KafkaException as error:
                if error.args[0].code() != self._package.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    reason = self._errors.reason(error, self._admin)
                    raise SourceUnavailable(self._servers, reason) from None
            except TimeoutError:
                raise SourceUnavailable(self._servers, "no answer in time") from None
        return found


def _id_text(topic_id: Any) -> str:  # noqa: ANN401
    """Return an id as Kafka prints it."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    data = b"".join((half % 2**64).to_bytes(8, "big") for half in halves)
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

"""What a broker says about its topics: whether one exists, and which cluster it is in.

A producer that writes to a topic that does not exist waits half a minute and then fails without a
reason. So topics are looked up first. Nothing is created here.
"""

from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.sinks.kafka.progress import FAILED, topic_config
from cutwater.sinks.kafka.settings import KafkaSettings

_CALL_S: Final = 20.0


class TopicFacts:
    """Facts about the topics of one broker; SinkError if it does not answer."""

    def __init__(self, settings: KafkaSettings, sink: SinkId) -> None:
        self._settings = settings
        self._sink = sink
        self._admin: AdminClient | None = None
        self._known: set[str] = set()

    def problem(self, topic: str) -> str | None:
        """Return why a topic cannot be written to, as far as is known; None if it can."""
        found = self._metadata().topics.get(topic)
        if found is None:
            reason = f"there is no topic {topic}, or these credentials may not see it (Describe)"
            return f"{reason}; create it, with the partitions that you want, or grant the right"
        error = found.error
        if error is None:
            return None
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return f"not authorised for topic {topic}"
        return f"topic {topic}: {error.str()}"

    def require(self, topic: str) -> None:
        """Refuse a topic that cannot be written to."""
        if topic not in self._known:
            why = self.problem(topic)
            if why is not None:
                raise SinkError(self._sink, why)
            self._known.add(topic)

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has now; None if that is not known."""
        found = self._metadata().topics.get(topic)
        return len(found.partitions) or None if found is not None else None

    def is_compacted(self, topic: str) -> bool:
        """Return whether every record of a topic needs a key; False if that is not known."""
        try:
            policy = topic_config(self._connect(), topic)["cleanup.policy"].value
        except FAILED:
            # Reading it is a right of its own, which writing does not need.
            return False
        return "compact" in (policy or "")

    def identity(self, topic: str | None) -> str:
        """Return the cluster's own id, and the topic: the same for all addresses of the topic."""
        return f"{self._metadata().cluster_id}/{topic or '*'}"

    def _connect(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._settings.admin()
        return self._admin

    def _metadata(self) -> ClusterMetadata:
        try:
            # All topics: a question for one topic may create it, if brokers are set up so.
            return self._connect().list_topics(timeout=_CALL_S)
        except FAILED as error:
            reason = self._settings.reason(error, self._admin)
            self._admin = None
            place = f"Kafka at {self._settings.bootstrap}"
            raise SinkError(self._sink, f"{place}: {reason}") from None

"""A Kafka broker as a running pipeline asks it: by the client that Spark's Kafka source brings.

The client gets the options of the user's source unchanged, so that every way to reach a broker that
works for the source works here, and no secret leaves the JVM by another way. Calls may come from
any thread, and end after seconds if the broker does not answer. Implements `kafka.broker.Broker`.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from cutwater.errors import SourceUnavailable
from cutwater.kafka.broker import Bounds, known_ids
from cutwater.kafka.offsets import Offsets, TopicPartition
from cutwater.runtime.reporting.failed_batch import cause_of

_TIMEOUT_S: Final = 10
_UNKNOWN: Final = "UnknownTopicOrPartitionException"
_DEFAULTS: Final = {
    "client.id": "cutwater",
    "default.api.timeout.ms": str(_TIMEOUT_S * 1000),
    "request.timeout.ms": str(_TIMEOUT_S * 500),
    "reconnect.backoff.max.ms": "1000",
}


class KafkaAdmin:
    """One connection to a broker."""

    def __init__(self, jvm: Any, settings: Mapping[str, str], *, reads_committed: bool) -> None:
        """Connect with the settings of Kafka's own client; nothing is sent yet."""
        self._jvm = jvm
        self._place = settings.get("bootstrap.servers", "")
        self._reads_committed = reads_committed
        properties = jvm.java.util.Properties()
        for name, value in (_DEFAULTS | dict(settings)).items():
            properties.setProperty(name, value)
        try:
            self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        except (Py4JError, TypeError) as error:
            raise SourceUnavailable(self._place, cause_of(error)[1].rstrip(".")) from None

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        if not topics:
            return {}
        asked = self._admin.describeTopics(self._list(sorted(topics))).topicNameValues()
        found = {topic: self._get(asked.get(topic)) for topic in sorted(topics)}
        return known_ids(
            {
                topic: str(description.topicId().toString())
                for topic, description in found.items()
                if description is not None
            }
        )

    def compacted(self, topics: Collection[str]) -> tuple[str, ...]:
        """Return those of the topics that are compacted, sorted."""
        config = self._jvm.org.apache.kafka.common.config
        resources = {
            topic: config.ConfigResource(config.ConfigResource.Type.TOPIC, topic)
            for topic in sorted(topics)
        }
        asked = self._admin.describeConfigs(self._list(resources.values())).values()
        found = {topic: self._get(asked.get(resource)) for topic, resource in resources.items()}
        return tuple(
            topic
            for topic, settings in found.items()
            if settings is not None and "compact" in str(settings.get("cleanup.policy").value())
        )

    def topics_like(self, pattern: str) -> tuple[str, ...]:
        """Return the topics whose whole name a pattern of Java matches, sorted."""
        compiled = self._jvm.java.util.regex.Pattern.compile(pattern)
        names = [str(name) for name in self._get(self._admin.listTopics().names())]
        return tuple(sorted(name for name in names if compiled.matcher(name).matches()))

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        first, end = self._offsets(partitions, spec.earliest()), self.ends(partitions)
        return {
            partition: Bounds(first[partition], end[partition])
            for partition in sorted(first.keys() & end.keys())
        }

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return where each partition ends for its reader; what does not exist is left out."""
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        return self._offsets(partitions, spec.latest())

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets to a consumer group; the group must have no members."""
        positions = self._jvm.java.util.HashMap()
        for partition, offset in offsets.items():
            metadata = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
            positions.put(self._partition(partition), metadata(offset))
        self._get(self._admin.alterConsumerGroupOffsets(group, positions).all())

    def close(self) -> None:
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))

    def _offsets(
        self, partitions: Collection[TopicPartition], spec: Any
    ) -> dict[TopicPartition, int]:
        kafka = self._jvm.org.apache.kafka
        wanted = self._jvm.java.util.HashMap()
        keys = {partition: self._partition(partition) for partition in sorted(partitions)}
        for key in keys.values():
            wanted.put(key, spec)
        level = kafka.common.IsolationLevel
        isolation = level.READ_COMMITTED if self._reads_committed else level.READ_UNCOMMITTED
        options = kafka.clients.admin.ListOffsetsOptions(isolation)
        asked = self._admin.listOffsets(wanted, options)
        found = {
            partition: self._get(asked.partitionResult(key)) for partition, key in keys.items()
        }
        return {
            partition: int(result.offset())
            for partition, result in found.items()
            if result is not None
        }

    def _partition(self, partition: TopicPartition) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(*partition)

    def _list(self, values: Collection[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for value in values:
            found.add(value)
        return found

    def _get(self, future: Any) -> Any:
        """Wait for an answer; None if the topic or the partition does not exist."""
        seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
        try:
            return future.get(2 * _TIMEOUT_S, seconds)
        except Py4JJavaError as error:
            cause = error.java_exception.getCause() or error.java_exception
            if cause.getClass().getSimpleName() == _UNKNOWN:
                return None
            reason = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
            raise SourceUnavailable(self._place, reason.rstrip(".")) from None
        except Py4JError:
            raise SourceUnavailable(self._place, "the JVM has ended") from None

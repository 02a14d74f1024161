"""Follows the Kafka sources of a running generation: their lag, their topics, their groups.

One thread asks the brokers every few seconds, apart from all threads that run batches or take
checkpoints. It notices that a topic was deleted and recreated, which Spark does not see once the
new topic has as many records as the old one. It commits the offsets of decided checkpoints to the
consumer groups that sources name, so that the tools of Kafka show their lag. Nothing is read back
from a group, no checkpoint waits for a broker, and a broker that does not answer is only logged.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from py4j.protocol import Py4JError

from cutwater.errors import RunError, SourceUnavailable
from cutwater.kafka.broker import recreated
from cutwater.kafka.offsets import Offsets, read_offsets
from cutwater.runtime.reporting.status import PartitionLag
from cutwater.spark.analysis.kafka_options import KafkaSource
from cutwater.spark.engine.kafka_brokers import KafkaBrokers

_LOG: Final = logging.getLogger(__name__)
EVERY_S = 5.0
"""How often brokers are asked."""

_CLOSING_S: Final = 5.0
"""How long the end of a generation waits for the last commits to groups."""


class ReadsKafka(Protocol):
    """A step that reads Kafka."""

    lag: tuple[PartitionLag, ...]

    def offset_at(self, line: int) -> str | None:
        """Return the offset of one of its streams after its last batch; for any thread."""
        ...


@dataclass(slots=True)
class WatchedSource:
    """One Kafka source of a step.

    Attributes:
        line: The number of its line in the step's offsets.
        topics: The ids of its topics, as far as they are known.
        group: The consumer group for its offsets; None for none.
    """

    step: ReadsKafka
    line: int
    name: str
    source: KafkaSource
    topics: dict[str, str]
    group: str | None = None
    lag: tuple[PartitionLag, ...] = ()
    silent: bool = False


@dataclass(slots=True)
class KafkaWatch:
    """Watches the sources of one generation; its thread starts with `start`."""

    brokers: KafkaBrokers
    failed: Callable[[ReadsKafka, BaseException], None]
    _sources: list[WatchedSource] = field(default_factory=list)
    _commits: dict[tuple[str, int], tuple[WatchedSource, Offsets]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False
    _thread: threading.Thread | None = None

    def add(self, source: WatchedSource) -> None:
        """Watch a source; before the thread starts."""
        self._sources.append(source)

    def start(self) -> None:
        """Begin to ask; does nothing without sources, and nothing the second time."""
        if self._sources and self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="kafka watch", daemon=True)
            self._thread.start()

    def decided(self, step: ReadsKafka, offsets: Sequence[str | None]) -> None:
        """Commit the offsets of a decided checkpoint, soon; never waits.

        Of several that wait for a slow broker only the newest is committed.
        """
        with self._changed:
            for source in self._sources:
                if source.step is not step or source.group is None:
                    continue
                found = read_offsets(offsets[source.line])
                if found:
                    self._commits[source.name, source.line] = (source, found)
            if self._commits:
                self._changed.notify()

    def close(self) -> None:
        """Commit what waits, if the broker answers in time, and close the connections."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSING_S)
        try:
            self.brokers.close()
        except Py4JError as error:
            _LOG.debug("a connection to Kafka was not closed: %s", error)

    def _loop(self) -> None:
        while True:
            with self._changed:
                commits, self._commits = self._commits, {}
                closed = self._closed
            self._commit(commits.values())
            if closed:
                return
            for source in self._sources:
                self._look(source)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._commits, EVERY_S)

    def _commit(self, commits: Iterable[tuple[WatchedSource, Offsets]]) -> None:
        for source, offsets in commits:
            assert source.group is not None
            try:
                self.brokers.of(source.source).commit(source.group, offsets)
            except (SourceUnavailable, Py4JError) as error:
                group = source.group
                _LOG.warning("source %s: group %s is not current: %s", source.name, group, error)

    def _look(self, source: WatchedSource) -> None:
        offsets = read_offsets(source.step.offset_at(source.line))
        if not offsets:
            return
        try:
            admin = self.brokers.of(source.source)
            now = admin.topic_ids({partition.topic for partition in offsets})
            ends = admin.ends(offsets.keys())
        except (SourceUnavailable, Py4JError) as error:
            if not source.silent:
                _LOG.warning("the lag of source %s is not known: %s", source.name, error)
            source.silent, source.lag = True, ()
        else:
            source.silent = False
            gone = recreated(source.topics, now)
            source.topics |= now
            source.lag = _lag(source.name, offsets, ends)
            if gone:
                self.failed(source.step, RunError(_describe(source.name, gone)))
        source.step.lag = tuple(
            found for other in self._sources if other.step is source.step for found in other.lag
        )


def _lag(name: str, offsets: Offsets, ends: Offsets) -> tuple[PartitionLag, ...]:
    return tuple(
        PartitionLag(name, partition.topic, partition.partition, offset, ends[partition])
        for partition, offset in offsets.items()
        if partition in ends
    )


def _describe(name: str, topics: Sequence[str]) -> str:
    return (
        f"source {name} reads {', '.join(topics)}, deleted and recreated while the pipeline ran: "
        "its offsets are those of other records."
    )

"""What Kafka itself knows about a sink: the slots that were committed, in a compacted topic.

A slot's rows and its progress record are written in one transaction: both are visible or neither.
The topic has one partition, and one record for each sink, whose key is pipeline and sink. A record
holds the newest slots with the total of rows up to each, so that a repeated commit is
recognized and a rewind can count what would be duplicated.

Sinks may share the topic. A transaction of another sink that is open hides later records from a
reader of committed records. So the topic is read up to the end that uncommitted readers see, and
not up to the first open transaction: a reader that stopped there would miss a commit, and write its
rows twice.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import PipelineId, SinkId, Slot
from cutwater.sinks.kafka.settings import KafkaSettings

SLOTS_MAX: Final = 100
"""How many slots a record remembers, which limits repetitions and the counts of a rewind."""

_FORMAT: Final = 1
_CALL_S: Final = 20.0
_ANSWER_S: Final = 30.0
"""After `_CALL_S` the client itself answers that the broker did not."""

_READ_S: Final = 90.0
"""Longer than a transaction that was left open by a process that died."""

_OPEN: Final = (
    "a transaction may be open in it; if it stays so for longer than transaction.timeout.ms, see "
    "docs/reference/sink-kafka.md about hanging transactions"
)

FAILED: Final = (KafkaException, TimeoutError)

_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001 - its public name
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        # The client wants to know the coordinator of a group that is never used.
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)

_UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its public name
    }
)
_PAUSE_S: Final = 0.1

_TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    # Small segments that are compacted soon: a start reads the whole topic.
    "segment.bytes": "1048576",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """The slots of one sink that Kafka holds, oldest first.

    Attributes:
        totals: Each remembered slot, with all rows that were written up to it.
        partial: A slot of which only the first rows are written, and how many; None if there is
            none.
        forgotten: Whether older slots are no longer remembered.
        unfinished: The slots in `totals` that a rewind left with a part of their rows.
    """

    totals: tuple[tuple[Slot, int], ...] = ()
    partial: tuple[Slot, int] | None = None
    forgotten: bool = False
    unfinished: tuple[Slot, ...] = ()

    @property
    def newest(self) -> Slot | None:
        return self.totals[-1][0] if self.totals else None

    @property
    def rows(self) -> int:
        """All rows that readers see."""
        return self.rows_complete + (self.partial[1] if self.partial else 0)

    @property
    def rows_complete(self) -> int:
        """The rows of slots that are finished."""
        return self.totals[-1][1] if self.totals else 0

    def rows_at(self, slot: int) -> int | None:
        """Return how many rows readers saw at a slot; None if that is forgotten."""
        found = [total for then, total in self.totals if then <= slot]
        if found:
            return found[-1]
        return None if self.forgotten else 0

    def is_done(self, slot: Slot, sink: SinkId) -> bool:
        """Return whether a slot is committed; Superseded if a later one is instead."""
        if any(done == slot for done, _ in self.totals) and slot not in self.unfinished:
            return True
        later = [done for done, _ in (*self.totals, *filter(None, [self.partial])) if done > slot]
        if later:
            raise Superseded(sink, slot, later[-1])
        return False

    def written_of(self, slot: Slot) -> int:
        """Return how many rows of an unfinished slot are there."""
        return self.partial[1] if self.partial and self.partial[0] == slot else 0

    def finish(self, slot: Slot, rows: int) -> "Progress":
        """Add a slot with the number of its rows."""
        before = self._abandon_other(slot)
        totals = (*before.totals, (slot, before.rows_complete + rows))
        forgotten = self.forgotten or len(totals) > SLOTS_MAX
        return Progress(totals[-SLOTS_MAX:], None, forgotten, before.unfinished[-SLOTS_MAX:])

    def advance(self, slot: Slot, rows: int) -> "Progress":
        """Record that the first rows of a slot are written, and more will follow."""
        return replace(self._abandon_other(slot), partial=(slot, rows))

    def _abandon_other(self, slot: Slot) -> "Progress":
        """Count the rows of an older slot that will not be finished: a rewind left them there."""
        if self.partial is None or self.partial[0] == slot:
            return self
        left = replace(self, partial=None).finish(*self.partial)
        return replace(left, unfinished=(*left.unfinished, self.partial[0])[-SLOTS_MAX:])

    def pack(self) -> bytes:
        content = {
            "format": _FORMAT,
            "totals": self.totals,
            "partial": self.partial,
            "forgotten": self.forgotten,
            "unfinished": self.unfinished,
        }
        return json.dumps(content).encode()

    @staticmethod
    def unpack(value: bytes, sink: SinkId) -> "Progress":
        """Read a record; SinkError if this version of Cutwater cannot."""
        try:
            found = json.loads(value)
            if found["format"] != _FORMAT:
                reason = f"its progress has the format {found['format']!r}, of another version"
                raise SinkError(sink, f"{reason} of Cutwater; use that one or a newer one")
            totals = tuple((Slot(slot), int(rows)) for slot, rows in found["totals"])
            partial = found["partial"] and (Slot(found["partial"][0]), int(found["partial"][1]))
            unfinished = tuple(Slot(slot) for slot in found["unfinished"])
            return Progress(totals, partial, bool(found["forgotten"]), unfinished)
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(sink, "its progress record in Kafka is damaged") from error


class ProgressTopic:
    """Reads the progress of one sink. For one thread at a time.

    Every method raises `SinkError` if it cannot be done now.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, pipeline: PipelineId, sink: SinkId
    ) -> None:
        self.name = topic
        self.key = f"{pipeline}/{sink}".encode()
        self._settings = settings
        self._sink = sink
        self._is_there = False
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._found = Progress()
        self._position = 0

    def make(self) -> None:
        """Create the topic if it is not there; ConfigError if it would forget commits."""
        if self._is_there:
            return
        try:
            self._admin = admin = self._settings.admin()
            if not self._is_in(admin):
                topic = NewTopic(self.name, num_partitions=1, config=dict(_TOPIC_CONFIG))
                with contextlib.suppress(_Exists):
                    _create(admin, topic)
            self._check_soon(admin)
        except FAILED as error:
            raise self._error("cannot be created or inspected", error) from None
        self._is_there = True

    def check(self) -> None:
        """Create nothing; ConfigError if there is a topic, and it would forget commits."""
        try:
            self._admin = admin = self._settings.admin()
            if self._is_in(admin):
                self._check_soon(admin)
                self._is_there = True
        except FAILED as error:
            raise self._error("cannot be inspected", error) from None

    def _is_in(self, admin: AdminClient) -> bool:
        return self.name in admin.list_topics(timeout=_CALL_S).topics

    def _check_soon(self, admin: AdminClient) -> None:
        """Check the topic; a broker may know a new topic only a moment after it was created."""
        deadline = time.monotonic() + _CALL_S
        while True:
            try:
                return self._check(admin)
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _check(self, admin: AdminClient) -> None:
        policy = topic_config(admin, self.name)["cleanup.policy"].value
        if policy != "compact":
            reason = f"the topic {self.name} has cleanup.policy={policy}, and would forget commits"
            raise ConfigError("progress", f"{reason}; it needs compact")
        partitions = admin.list_topics(self.name, timeout=_CALL_S).topics[self.name].partitions
        if not partitions:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        if len(partitions) > 1:
            reason = f"the topic {self.name} has {len(partitions)} partitions"
            raise ConfigError("progress", f"{reason}; it needs exactly one")

    def read(self) -> Progress:
        """Read to the end of the topic, and return the newest progress of the sink.

        Nothing was committed if there was no topic when the sink was opened.
        """
        if not self._is_there:
            return Progress()
        with self._reading():
            end = self._end()
            if self._consumer is None or end < self._position:
                self._start()
            self._poll_until(lambda: self._position >= end, f"read {self.name} to its end")
        return self._found

    def wait_for(self, slot: Slot) -> None:
        """Wait, after `read`, until readers of committed records see that a slot is complete."""
        with self._reading():
            self._poll_until(
                lambda: (self._found.newest or 0) >= slot, f"find slot {slot} in {self.name}"
            )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FAILED as error:
            failure = self._error("cannot be read", error)
            self._forget()
            raise failure from None
        except SinkError:
            self._forget()
            raise

    def _forget(self) -> None:
        """Start again with new clients: old ones may hold on to leaders that are gone."""
        self._admin = None
        self._consumer = None

    def _end(self) -> int:
        """Return the end of the topic, after all transactions that are open."""
        if self._admin is None:
            self._admin = self._settings.admin()
        place = TopicPartition(self.name, 0)
        (future,) = self._admin.list_offsets(
            {place: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_CALL_S,
        ).values()
        return int(future.result(_ANSWER_S).offset)

    def _start(self) -> None:
        self._consumer = self._settings.consumer()
        self._consumer.assign([TopicPartition(self.name, 0, OFFSET_BEGINNING)])
        self._found = Progress()
        self._position = 0

    def _poll_until(self, is_reached: Callable[[], bool], what: str) -> None:
        assert self._consumer is not None
        deadline = time.monotonic() + _READ_S
        while not is_reached():
            if time.monotonic() > deadline:
                raise SinkError(self._sink, f"could not {what} in {_READ_S:g} s; {_OPEN}")
            message = self._consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._position = cast("int", message.offset()) + 1
                value = message.value()
                if message.key() == self.key and value is not None:
                    self._found = Progress.unpack(value, self._sink)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self._position = max(self._position, cast("int", message.offset()))
            elif not _is_passing(error):
                raise KafkaException(error)

    def _error(self, what: str, error: Exception) -> SinkError:
        reason = self._settings.reason(error, self._admin, self._consumer)
        return SinkError(self._sink, f"the progress topic {self.name} {what}: {reason}")


def topic_config(admin: AdminClient, topic: str) -> Mapping[str, ConfigEntry]:
    """Return the settings of a topic; one of `FAILED` if they are not to be had."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=_CALL_S).values()
    found: Mapping[str, ConfigEntry] = future.result(_ANSWER_S)
    return found


class _Exists(Exception):
    """Another process has created the topic at the same time."""


def _create(admin: AdminClient, topic: NewTopic) -> None:
    (future,) = admin.create_topics([topic], request_timeout=_CALL_S).values()
    try:
        future.result(_ANSWER_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise _Exists from None
        raise


def _is_passing(error: KafkaError) -> bool:
    """Return whether an error does not concern us, or the client repairs it by itself."""
    return error.retriable() or error.code() in _PASSING

"""The transactional producer of one sink: it fences its predecessors and writes parts of a commit.

A producer is used while everything it did is known to have succeeded. After any other outcome it is
thrown away, and the next one starts with `init_transactions`: the broker then ends the transaction
that was left open and refuses everything that an older producer still sends. Whether a commit that
returned an error took place is therefore not known here; the progress topic tells, when it is read
after `fence`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.sinks.kafka.records import ANY_PARTITION, Record
from cutwater.sinks.kafka.settings import KafkaSettings

_INIT_S: Final = 45.0
_LOOK_S: Final = 5.0
"""How often the wait for the broker is interrupted to ask for the cause."""
_ABORT_S: Final = 5.0
_RUN: Final = 1_000
"""How many records are handed over before reports are taken."""
_FULL_S: Final = 0.02
"""How long a full queue is left to drain before it is tried again."""

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - its public name
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
    }
)
_CONSEQUENCES: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
)


_EXPLAINED: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "a record is too large; raise max.message.bytes of the topic "
    "and message.max.bytes in the options",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic or partition",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic",  # noqa: SLF001 - its public name
    KafkaError._UNKNOWN_PARTITION: "there is no such partition",  # noqa: SLF001
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not authorised to write to it",
}

Conclude = Callable[[int, bool], Record]
"""Makes the last record of a transaction from the number of records before it, and whether these
are all that there were."""


class ProducerFenced(Exception):
    """Another producer of this sink has started since; nothing of the transaction is visible."""


class Transactions:
    """The producer of one sink. For one thread at a time.

    Every method raises `SinkError` if it cannot be done now; the producer is then thrown away.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str, sink: SinkId) -> None:
        self._settings = settings
        self._id = transactional_id
        self._sink = sink
        self._producer: Producer | None = None
        self._refused: list[Message] = []
        self._topics: set[str] = set()

    def fence(self) -> None:
        """Let no older producer of this sink write any more, and end what it left open."""
        if self._producer is not None:
            return
        producer = None
        try:
            producer = self._settings.producer(self._id)
            self._init(producer)
        except KafkaException as error:
            raise self._error(error, producer) from None
        self._producer = producer

    def _init(self, producer: Producer) -> None:
        """Wait for the broker, but not when a wrong password or the like is known to be the cause.

        A call that is repeated after a timeout goes on with what the first one has begun.
        """
        start_s = time.monotonic()
        while True:
            try:
                producer.init_transactions(_LOOK_S)
            except KafkaException as error:
                is_over = time.monotonic() - start_s > _INIT_S
                cause = self._settings.errors.cause_since(start_s, producer)
                if is_over or cause or not error.args[0].retriable():
                    raise
            else:
                return

    def write(self, records: Iterator[Record], conclude: Conclude, budget_s: float) -> bool:
        """Write records, and what `conclude` adds, in one transaction; return whether it has all.

        It stops before the last record, and commits, when the time is used up.

        Raises:
            ProducerFenced: If another producer has called `fence` since.
        """
        assert self._producer is not None
        producer = self._producer
        self._refused, self._topics = [], set()
        end_s = time.monotonic() + self._settings.transaction_s
        try:
            producer.begin_transaction()
            count, is_all = self._send(producer, records, budget_s)
            if not self._produce(producer, [conclude(count, is_all)], end_s):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
            producer.commit_transaction(max(1.0, end_s - time.monotonic()))
        except KafkaException as error:
            self._give_up()
            if error.args[0].code() in _FENCED:
                raise ProducerFenced from None
            raise self._error(error, producer) from None
        except BaseException:
            self._give_up()
            raise
        return is_all

    def _send(
        self, producer: Producer, records: Iterator[Record], budget_s: float
    ) -> tuple[int, bool]:
        """Send records until there are none left or the time is used up; say which."""
        count, start_s = 0, time.monotonic()
        # One record is sent in any case, or a slow broker would never get any further.
        size, patience_s = 1, self._settings.transaction_s
        while run := list(islice(records, size)):
            sent = self._produce(producer, run, start_s + patience_s)
            if count + sent == 0 and not self._refused:
                # Nothing else is in the queue: the transaction before it was committed or aborted.
                reason = "a record exceeds queue.buffering.max.kbytes; raise it in the options"
                raise SinkError(self._sink, f"topic {run[0].topic}: {reason}")
            count += sent
            producer.poll(0)
            if sent < len(run) or self._refused or time.monotonic() - start_s > budget_s:
                return count, False
            size, patience_s = _RUN, budget_s
        return count, True

    def _produce(self, producer: Producer, records: Sequence[Record], end_s: float) -> int:
        """Hand records to the client, in order; return for how many it had room in time."""
        sent = 0
        while sent < len(records):
            taken = self._hand_over(producer, _alike(records, sent))
            sent += taken
            if not taken:
                # The queue is full: wait for the broker.
                producer.poll(_FULL_S)
                if self._refused or time.monotonic() > end_s:
                    break
        return sent

    def _hand_over(self, producer: Producer, records: Sequence[Record]) -> int:
        """Hand records over in one call, if they are alike; return how many the queue has taken.

        Once the queue is full it takes none of the records that follow, so it keeps their order.
        """
        first = records[0]
        self._topics.add(first.topic)
        if len(records) == 1:
            return self._hand_over_one(producer, first)
        messages: list[dict[str, Any]] = [
            {"value": record.value, "key": record.key} for record in records
        ]
        taken: int = producer.produce_batch(first.topic, messages, on_delivery=self._note)
        if taken < len(messages):
            for message in messages:
                error: KafkaError | None = message.get("_error")
                if error is not None and error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001
                    raise self._name(error, first.topic, None)
        return taken

    def _hand_over_one(self, producer: Producer, record: Record) -> int:
        try:
            producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=record.headers,
                on_delivery=self._note,
            )
        except BufferError:
            return 0
        except KafkaException as error:
            raise self._name(error.args[0], record.topic, record.partition) from None
        return 1

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(message)

    def _give_up(self) -> None:
        """Throw the producer away; end its transaction, if the broker answers soon."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException):
                producer.purge()
                producer.abort_transaction(_ABORT_S)

    def _error(self, error: KafkaException, producer: Producer | None) -> SinkError:
        """Name the record that was refused, or else what happened to the transaction."""
        for message in self._refused:
            why = message.error()
            # Records that were only waiting when the transaction failed say nothing.
            if why is not None and why.code() not in _CONSEQUENCES:
                return self._name(why, message.topic(), message.partition())
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            topics = ", ".join(sorted(self._topics))
            return SinkError(self._sink, f"topics {topics}: not authorised to write to all of them")
        reason = self._settings.reason(error, producer)
        return SinkError(self._sink, f"Kafka at {self._settings.bootstrap}: {reason}")

    def _name(self, why: KafkaError, topic: str | None, partition: int | None) -> SinkError:
        place = f"topic {topic}"
        if partition is not None and partition >= 0:
            place += f", partition {partition}"
        reason = _EXPLAINED.get(why.code(), self._settings.redact(why.str().rstrip(".")))
        return SinkError(self._sink, f"{place}: {reason} ({why.name()})")


def _alike(records: Sequence[Record], start: int) -> Sequence[Record]:
    """Return the records from a place on that one call can take.

    They have one topic and no headers, and the client chooses their partitions: `produce_batch`
    does not look at the partition of a message.
    """
    first = records[start]
    end = start + 1
    if _can_share(first, first.topic):
        while end < len(records) and _can_share(records[end], first.topic):
            end += 1
    return records[start:end]


def _can_share(record: Record, topic: str) -> bool:
    return record.topic == topic and record.partition == ANY_PARTITION and not record.headers

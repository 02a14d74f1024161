"""The transactional producer of one sink: it fences its predecessors and writes parts of a commit.

A producer is used while everything it did is known to have succeeded. After any other outcome it is
thrown away, and the next one starts with `init_transactions`: the broker then ends the transaction
that was left open and refuses everything that an older producer still sends. Whether a commit that
returned an error took place is therefore not known here; the progress topic tells, when it is read
after `fence`.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.sinks.kafka.records import Message, Run
from cutwater.sinks.kafka.settings import KafkaSettings

_INIT_S: Final = 45.0
_LOOK_S: Final = 5.0
"""How often the wait for the broker is interrupted to ask for the cause."""
_ABORT_S: Final = 5.0
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
    KafkaError.INVALID_RECORD: "the broker refuses a record, as it does with one that has no key "
    "in a compacted topic",
}

Conclude = Callable[[int, bool], Run]
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
        self._refused: list[Report] = []
        self._topics: set[str] = set()
        self._count = 0
        self._count_max = sys.maxsize

    def fence(self) -> None:
        """Let no older producer of this sink write any more, and end what it left open."""
        if self._producer is not None:
            return
        self._refused, self._topics = [], set()
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

    def write(self, runs: Iterator[Run], conclude: Conclude, budget_s: float) -> bool:
        """Write records, and what `conclude` adds, in one transaction; return whether it has all.

        It stops before the last record, and commits, when the time is used up. After a transaction
        that failed, the next one has half as many records: the broker may be slow.

        Raises:
            ProducerFenced: If another producer has called `fence` since.
        """
        assert self._producer is not None
        producer = self._producer
        self._refused, self._topics, self._count = [], set(), 0
        # Before the time runs: a commit that is resumed skips what is written.
        runs = _begin(runs)
        end_s = time.monotonic() + self._settings.transaction_s
        try:
            producer.begin_transaction()
            is_all = self._send(producer, runs, budget_s)
            if not self._produce(producer, conclude(self._count, is_all), end_s):
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
        self._count_max = min(2 * self._count_max, sys.maxsize)
        return is_all

    def _send(self, producer: Producer, runs: Iterator[Run], budget_s: float) -> bool:
        """Send records until the time is used up; return whether none are left."""
        start_s = time.monotonic()
        # One record is sent in any case, or a slow broker would never get any further.
        patience_s = self._settings.transaction_s
        for run in _first_alone(runs):
            room = run._replace(messages=run.messages[: self._count_max - self._count])
            sent = self._produce(producer, room, start_s + patience_s)
            if self._count + sent == 0 and not self._refused:
                # Nothing else is in the queue: the transaction before it was committed or aborted.
                reason = "a record exceeds queue.buffering.max.kbytes; raise it in the options"
                raise SinkError(self._sink, f"topic {run.topic}: {reason}")
            self._count += sent
            producer.poll(0)
            is_over = time.monotonic() - start_s > budget_s
            if sent < len(run.messages) or self._refused or is_over:
                return False
            patience_s = budget_s
        return True

    def _produce(self, producer: Producer, run: Run, end_s: float) -> int:
        """Hand records to the client, in order; return for how many it had room in time."""
        self._topics.add(run.topic)
        hand_over = self._hand_over_plain if run.is_plain else self._hand_over
        sent = 0
        while sent < len(run.messages):
            taken = hand_over(producer, run.topic, run.messages[sent:])
            sent += taken
            if not taken:
                # The queue is full: wait for the broker.
                producer.poll(_FULL_S)
                if self._refused or time.monotonic() > end_s:
                    break
        return sent

    def _hand_over_plain(self, producer: Producer, topic: str, messages: list[Message]) -> int:
        """Hand records over in one call, which does not look at partitions and headers.

        Once the queue is full it takes none of the records that follow, so it keeps their order.
        """
        taken: int = producer.produce_batch(topic, messages, on_delivery=self._note)
        if taken < len(messages):
            for message in messages:
                error: KafkaError | None = message.get("_error")
                if error is not None and error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001
                    raise self._name(error, topic, None)
        return taken

    def _hand_over(self, producer: Producer, topic: str, messages: list[Message]) -> int:
        for taken, message in enumerate(messages):
            try:
                producer.produce(topic, on_delivery=self._note, **message)
            except BufferError:
                return taken
            except KafkaException as error:
                raise self._name(error.args[0], topic, message.get("partition")) from None
        return len(messages)

    def _note(self, error: KafkaError | None, message: Report) -> None:
        if error is not None:
            self._refused.append(message)

    def _give_up(self) -> None:
        """Throw the producer away; end its transaction, if the broker answers soon."""
        producer, self._producer = self._producer, None
        self._count_max = max(1, min(self._count, self._count_max) // 2)
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
        if error.args[0].code() == KafkaError._TIMED_OUT and self._count:  # noqa: SLF001
            reason += (
                f"; {self._count} records did not fit into transaction.timeout.ms, the next "
                "transaction has half as many"
            )
        return SinkError(self._sink, f"Kafka at {self._settings.bootstrap}: {reason}")

    def _name(self, why: KafkaError, topic: str | None, partition: int | None) -> SinkError:
        place = f"topic {topic}"
        if partition is not None and partition >= 0:
            place += f", partition {partition}"
        reason = _EXPLAINED.get(why.code(), self._settings.redact(why.str().rstrip(".")))
        return SinkError(self._sink, f"{place}: {reason} ({why.name()})")


def _begin(runs: Iterator[Run]) -> Iterator[Run]:
    """Read the first run now."""
    first = next(runs, None)
    return iter(()) if first is None else chain([first], runs)


def _first_alone(runs: Iterator[Run]) -> Iterator[Run]:
    for run in runs:
        yield run._replace(messages=run.messages[:1])
        if run.messages[1:]:
            yield run._replace(messages=run.messages[1:])
        break
    yield from runs

"""Kafka topics as targets: what a user names, and what is checked before anything runs.

`kafka.topic` does the work. It and everything else that needs the package `confluent_kafka` is
imported when a topic is opened or inspected, so that a pipeline can be planned without that
package.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import SinkId
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.sinks.files.target import directory_of
from cutwater.sinks.kafka.records import RecordForm
from cutwater.sinks.kafka.settings import KafkaSettings
from cutwater.store.backends.directories import is_directory
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from cutwater.sinks.kafka.metadata import TopicFacts

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class KafkaExtras(TypedDict, total=False):
    """The less common options of `kafka`.

    Attributes:
        options: Options of librdkafka, such as `security.protocol`, `sasl.username` and
            `compression.type`. `env:NAME` stands for a variable of the driver's environment;
            secrets must be given so.
        progress: The topic that records which slots are committed; created if necessary. Without
            it, `cutwater.`, the pipeline's uuid, a dot and the sink's name.
        order_by: The columns that order the records of one key in a batch. Rows of different
            batches are always in order; in a batch that was read from several files, Spark keeps no
            order.
        slot_header: Whether each record gets a header `cutwater-slot` with pipeline, sink and slot,
            by which consumers can recognize what is written again after a rewind.
    """

    options: Mapping[str, str]
    progress: str
    order_by: Sequence[str]
    slot_header: bool


def kafka(
    bootstrap: str,
    *,
    staging: str,
    topic: str | None = None,
    key: Sequence[str] = (),
    value: str | None = None,
    **extras: Unpack[KafkaExtras],
) -> "KafkaTarget":
    """Write a step's rows to Kafka, exactly once, at every checkpoint, however long it was down.

    Rows wait for their checkpoint as files, and are written in one transaction after its decision.
    Consumers need `isolation.level=read_committed`. Rows have the columns of Spark's Kafka sink:
    `value`, and perhaps `key`, `headers`, `topic` and `partition`; or any columns with
    `value="json"`. The topic must exist.

    Args:
        bootstrap: The brokers, as `host:port`, several with commas.
        staging: A directory for rows that wait for their decision, which driver and executors
            share; it must last as long as the store.
        topic: The topic of all rows; without it, the column `topic` names it for each row.
        key: With `value="json"`: the columns that are the key. One column is written as text,
            several as a JSON object.
        value: `"json"` writes each row as a JSON object with all its columns.
        extras: See `KafkaExtras`.

    Raises:
        ConfigError: If an option has a value that cannot work.
    """
    order_by = extras.get("order_by", ())
    for name, names in (("key", key), ("order_by", order_by)):
        if isinstance(names, str):
            raise ConfigError(name, f"{names!r} is one name; write a list of names")
    if value not in {None, "json"}:
        raise ConfigError("value", f"{value!r} is not a way to write rows; write 'json'")
    if key and value is None:
        raise ConfigError("key", "needs value='json'; otherwise the column key is the key")
    if value == "json" and topic is None:
        raise ConfigError("topic", "value='json' needs topic=, since all columns are in the value")
    unknown = sorted(extras.keys() - KafkaExtras.__annotations__.keys())
    if unknown:
        raise ConfigError(unknown[0], "sinks.kafka has no such option")
    for name, given in (("topic", topic), ("progress", extras.get("progress"))):
        if given is not None and (not _TOPIC.fullmatch(given) or given in {".", ".."}):
            raise ConfigError(name, f"{given!r} is no topic's name")
    directory_of(staging)
    options = {name: str(found) for name, found in extras.get("options", {}).items()}
    return KafkaTarget(
        KafkaSettings(bootstrap, options),
        RecordForm(topic, tuple(key), value == "json", tuple(order_by)),
        staging,
        extras.get("progress"),
        extras.get("slot_header", False),
    )


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A topic to write to; made by `kafka`, fills `Sink`."""

    settings: KafkaSettings
    form: RecordForm
    staging: str
    progress: str | None = None
    slot_header: bool = False

    @property
    def format(self) -> str:
        return "kafka"

    @property
    def accepts(self) -> frozenset[str]:
        """All of them, as Spark's own Kafka sink does: each row becomes one record."""
        return frozenset({"append", "update", "complete"})

    @property
    def keeps_event_order(self) -> bool:
        """Whether the Events of a channel are written one by one: columns may order the rows."""
        return not self.form.order_by

    def describe(self) -> str:
        return f"Kafka {self._topics}"

    @property
    def _topics(self) -> str:
        return "topics" if self.form.topic is None else f"topic {self.form.topic}"

    def open(self, context: SinkContext) -> OpenSink:
        """Open the topic for one generation; create the progress topic if necessary."""
        _require_client()
        from cutwater.sinks.kafka.topic import OpenKafkaTopic  # noqa: PLC0415 - an extra

        return OpenKafkaTopic(
            self.settings,
            self.form,
            directory_of(self.staging).absolute(),
            context,
            progress=self.progress,
            slot_header=self.slot_header,
        )

    def check_target(self, sink: SinkId, rows: "StructType | None") -> str | None:
        """It creates nothing."""
        why = None if rows is None else self.check_rows(sink, rows)
        if why is not None or self.form.topic is None:
            return why
        return self._facts(sink).problem(self.form.topic)

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:  # noqa: ARG002
        return self.form.problem(rows)

    def identity(self, sink: SinkId) -> str:
        """The cluster's own id, and the topic."""
        return self._facts(sink).identity(self.form.topic)

    def _facts(self, sink: SinkId) -> "TopicFacts":
        _require_client()
        from cutwater.sinks.kafka.metadata import TopicFacts  # noqa: PLC0415 - an extra

        return TopicFacts(self.settings, sink)

    def stored(self) -> StoredTarget:
        """Brokers, topic, staging and options; secrets are names of variables."""
        options: dict[str, tuple[str, ...]] = {
            "bootstrap": (self.settings.bootstrap,),
            "staging": (str(directory_of(self.staging).resolve()),),
            "key": self.form.key,
            "order_by": self.form.order_by,
            "options": tuple(f"{name}={value}" for name, value in self._sorted_options()),
        }
        if self.form.topic is not None:
            options["topic"] = (self.form.topic,)
        if self.form.as_json:
            options["value"] = ("json",)
        if self.progress is not None:
            options["progress"] = (self.progress,)
        if self.slot_header:
            options["slot_header"] = ("true",)
        uri = f"kafka://{self.settings.bootstrap}/{self.form.topic or '*'}"
        return StoredTarget(self.format, uri, options)

    def _sorted_options(self) -> list[tuple[str, str]]:
        return sorted(self.settings.options.items())


def reopen_kafka(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open a topic that a store has recorded; variables of the environment must be set again."""
    stored = target.options
    (staging,), (bootstrap,) = stored["staging"], stored["bootstrap"]
    if not is_directory(Path(staging)):
        raise SinkError(context.sink, f"there is no directory {staging} any more")
    pairs = (option.partition("=") for option in stored.get("options", ()))
    return KafkaTarget(
        KafkaSettings(bootstrap, {name: value for name, _, value in pairs}),
        RecordForm(
            stored.get("topic", (None,))[0],
            tuple(stored.get("key", ())),
            "value" in stored,
            tuple(stored.get("order_by", ())),
        ),
        staging,
        stored.get("progress", (None,))[0],
        "slot_header" in stored,
    ).open(context)


def _require_client() -> None:
    try:
        import confluent_kafka  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        reason = "needs the package confluent-kafka: pip install 'cutwater[kafka]'"
        raise ConfigError("sinks.kafka", reason) from error

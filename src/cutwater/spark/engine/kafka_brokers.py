"""What the brokers of a pipeline's Kafka sources are asked before a generation starts.

The ids of the topics become part of each step's identity, so that a topic that was deleted and
recreated under its name is refused (`protocol.evolution.mapping`). The records that come after a
checkpoint must still exist. A broker that does not answer prevents nothing: Spark waits for it, and
fails the first batch if records are missing.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cutwater.errors import RecordsLost, SourceUnavailable
from cutwater.ids import StepId
from cutwater.kafka.broker import find_lost
from cutwater.kafka.offsets import read_offsets
from cutwater.protocol.cut import Cut
from cutwater.spark.analysis.analysis import AnalyzedStep
from cutwater.spark.analysis.kafka_options import KafkaSource
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.kafka_admin import KafkaAdmin

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class KafkaBrokers:
    """The connections of one generation, one for each set of settings."""

    internals: Internals
    _admins: dict[str, KafkaAdmin] = field(default_factory=dict)
    _closed: bool = False

    def of(self, source: KafkaSource) -> KafkaAdmin:
        """Return the connection to a source's broker; SourceUnavailable once all are closed."""
        if self._closed:
            raise SourceUnavailable(source.servers, "the generation has ended")
        key = json.dumps([sorted(source.client.items()), source.reads_committed])
        if key not in self._admins:
            self._admins[key] = KafkaAdmin(
                self.internals.jvm, source.client, reads_committed=source.reads_committed
            )
        return self._admins[key]

    def close(self) -> None:
        self._closed = True
        for admin in self._admins.values():
            admin.close()
        self._admins.clear()

    def identify(
        self, analyzed: Mapping[StepId, AnalyzedStep], cut: Cut | None
    ) -> dict[StepId, AnalyzedStep]:
        """Return the steps with the ids of the topics that they read.

        What a broker does not say is taken from the cut.
        """
        known = _topics_in(cut)
        return {step: self._with_topics(found, known) for step, found in analyzed.items()}

    def _with_topics(
        self, analyzed: AnalyzedStep, known: Mapping[str, tuple[tuple[str, str], ...]]
    ) -> AnalyzedStep:
        if not analyzed.kafka:
            return analyzed
        inputs = list(analyzed.identity.inputs)
        for line, source in analyzed.kafka.items():
            before = {
                topic: number
                for topic, number in known.get(inputs[line].name, ())
                if source.pattern is not None or topic in source.topics
            }
            topics = before | self._topics(source)
            inputs[line] = replace(inputs[line], topics=tuple(sorted(topics.items())))
        return replace(analyzed, identity=replace(analyzed.identity, inputs=tuple(inputs)))

    def _topics(self, source: KafkaSource) -> dict[str, str]:
        try:
            admin = self.of(source)
            names = source.topics if source.pattern is None else admin.topics_like(source.pattern)
            return dict(admin.topic_ids(names))
        except SourceUnavailable as error:
            _LOG.warning("the ids of topics are not known: %s", error)
            return {}

    def check_records(self, analyzed: Mapping[StepId, AnalyzedStep], cut: Cut | None) -> None:
        """Check that every source still has what comes after a cut; RecordsLost if not."""
        for step, found in analyzed.items() if cut is not None else ():
            for line, source in found.kafka.items():
                assert cut is not None
                key = found.stream_keys[line]
                self._check(cut, found.streams[line], source, cut.snapshots[step].offsets.get(key))

    def _check(self, cut: Cut, name: str, source: KafkaSource, text: str | None) -> None:
        offsets = read_offsets(text)
        if not offsets:
            return
        try:
            lost = find_lost(offsets, self.of(source).bounds(offsets.keys()))
        except SourceUnavailable as error:
            _LOG.warning("whether %s still has its records is not known: %s", name, error)
            return
        problems = tuple(f"{record}." for record in lost)
        if problems and source.fails_on_loss:
            raise RecordsLost(cut.checkpoint_id, name, problems)
        for problem in problems:
            _LOG.warning("source %s: %s", name, problem)


def identify_topics(
    internals: Internals, analyzed: Mapping[StepId, AnalyzedStep]
) -> dict[StepId, AnalyzedStep]:
    """Return the steps with the ids of the topics that they read, outside of a run."""
    brokers = KafkaBrokers(internals)
    try:
        return brokers.identify(analyzed, None)
    finally:
        brokers.close()


def _topics_in(cut: Cut | None) -> dict[str, tuple[tuple[str, str], ...]]:
    found = {}
    for identity in () if cut is None else cut.identities.values():
        for step_input in identity.inputs:
            if step_input.topics:
                found[step_input.name] = step_input.topics
    return found

"""Declared sinks become sinks of Cutwater, or are refused by the option that has no equivalent."""

from pathlib import Path

import pytest

from cutwater.declarative.datasets import Dataset
from cutwater.declarative.definitions import DatasetDefinition, DatasetKind
from cutwater.declarative.spec import ProjectSpec
from cutwater.declarative.targets import TargetRefused, sink_target
from cutwater.pipeline.nodes import SourceLocation
from cutwater.sinks.delta.target import DeltaTarget
from cutwater.sinks.files.target import FilesTarget
from cutwater.sinks.kafka.target import KafkaTarget

SPEC = ProjectSpec(path=Path("/p/spark-pipeline.yml"), name="shop", storage="file:///p/storage")
KAFKA = {"kafka.bootstrap.servers": "b:9092", "topic": "orders"}


def sink(kind: str, **options: str) -> Dataset:
    definition = DatasetDefinition(
        name=("out",),
        kind=DatasetKind.SINK,
        place=SourceLocation("a.py", 1),
        format=kind,
        options=options,
    )
    return Dataset("out", definition, ())


def test_delta_and_parquet_go_to_their_path() -> None:
    delta, parquet = (
        sink_target(sink("delta", path="d"), SPEC),
        sink_target(sink("parquet", path="p"), SPEC),
    )

    assert isinstance(delta, DeltaTarget)
    assert isinstance(parquet, FilesTarget)
    assert (delta.uri, parquet.uri, parquet.write) == ("d", "p", "append")


def test_kafka_waits_below_the_storage_of_the_project() -> None:
    target = sink_target(sink("kafka", **KAFKA, **{"kafka.compression.type": "zstd"}), SPEC)

    assert isinstance(target, KafkaTarget)
    assert target.staging == "/p/storage/_cutwater/shop/out"
    assert target.settings.bootstrap == "b:9092"
    assert target.settings.options["compression.type"] == "zstd"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (sink("console"), "has the format console, which Cutwater does not write exactly"),
        (sink("parquet"), "has no option path"),
        (sink("delta", path="d", mergeSchema="true"), "has the option mergeSchema"),
        (sink("parquet", path="s3a://bucket/p"), "cannot be written to: s3a: files go to file"),
        (sink("kafka", topic="t"), "has no option kafka.bootstrap.servers"),
        (sink("kafka", **KAFKA, **{"kafka.acks": "1"}), "has the option kafka.acks, which"),
        (sink("kafka", **{**KAFKA, "topic": "a b"}), "cannot be written to: 'a b' is no topic"),
    ],
)
def test_what_has_no_exact_equivalent_is_refused(given: Dataset, reason: str) -> None:
    with pytest.raises(TargetRefused) as refused:
        sink_target(given, SPEC)

    assert str(refused.value).startswith(reason)


def test_a_remote_storage_cannot_hold_rows_that_wait_for_kafka() -> None:
    remote = ProjectSpec(path=SPEC.path, name="shop", storage="s3a://bucket/storage")

    with pytest.raises(TargetRefused, match="needs a directory for rows that wait"):
        sink_target(sink("kafka", **KAFKA), remote)

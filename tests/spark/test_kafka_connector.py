"""Spark's Kafka connector, as Maven has it, runs on the installed version of Spark."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.servers.jars import JarsUnavailable, connector_jars
from tests.servers.kafka import KafkaCluster, kafka_cluster

from cutwater.spark.session.java import use_java

_PROGRAM = """
import sys
from pyspark.sql import SparkSession

jars, bootstrap, given, taken, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
rows = rows.option("subscribe", given).option("startingOffsets", "earliest").load()
query = rows.select("key", "value").writeStream.format("kafka")
query = query.option("kafka.bootstrap.servers", bootstrap).option("topic", taken)
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.mark.matrix
def test_a_plain_query_copies_one_topic_to_another(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    use_java()
    given, taken = kafka.make_topic("given"), kafka.make_topic("taken")
    kafka.produce(given, [("a", "1"), ("b", "2")])

    words = [_jars(), kafka.bootstrap, given, taken, str(tmp_path_factory.mktemp("checkpoint"))]
    subprocess.run([sys.executable, "-c", _PROGRAM, *words], check=True, timeout=300)

    assert [(row.key(), row.value()) for row in kafka.read(taken)] == [(b"a", b"1"), (b"b", b"2")]


def _jars() -> str:
    try:
        return ",".join(map(str, connector_jars()))
    except JarsUnavailable as unavailable:
        pytest.skip(str(unavailable))

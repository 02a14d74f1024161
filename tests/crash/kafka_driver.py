"""A driver that counts what a topic has, in a process of its own, to be killed.

    python -m tests.crash.kafka_driver BOOTSTRAP TOPIC DIRECTORY [--available-now]

Only records of committed transactions count. One table has every record with its offset, the other
the totals of a step with state, and the topic `unique` what a second step with state has let
through, so that the three outputs of each commit can be compared with the input.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.servers.jars import connector_jars

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.run import RunOptions
from cutwater.spark.session.session import embedded_session


def totals(bootstrap: str, topic: str, tables: Path) -> Pipeline:
    """Kafka into two steps with state and, beside them, unchanged: three outputs that agree."""
    pipeline = Pipeline("totals")

    @pipeline.source(chain=False, consumer_group="totals")
    def numbers(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        reader = reader.option("kafka.isolation.level", "read_committed")
        rows = reader.option("maxOffsetsPerTrigger", "400").load()
        number = F.col("value").cast("string").cast("long").alias("number")
        return rows.select("partition", "offset", number)

    @pipeline.step(output_mode="update", partitions=2)
    def counts(numbers: DataFrame) -> DataFrame:
        groups = numbers.groupBy((F.col("number") % 7).alias("key"))
        return groups.agg(F.count("*").alias("count"), F.sum("number").alias("sum"))

    @pipeline.step(partitions=2, state="memory")
    def unique(numbers: DataFrame) -> DataFrame:
        return numbers.dropDuplicates(["number"]).select("number")

    target = sinks.delta(str(tables / "counts"), write="upsert", keys=["key"])
    pipeline.sink("totals", target, of=counts)
    output = sinks.kafka(
        bootstrap,
        topic="unique",
        key=["number"],
        value="json",
        staging=str(tables.parent / "staging"),
        slot_header=True,
    )
    pipeline.sink("published", output, of=unique)
    pipeline.sink("all", sinks.delta(str(tables / "all")), of=numbers)
    return pipeline


def main() -> None:
    """Run until the end of what is there, or until killed."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "directory"):
        parser.add_argument(name)
    parser.add_argument("--available-now", action="store_true")
    given = parser.parse_args()
    directory = Path(given.directory)
    jars = {"spark.jars": ",".join(map(str, connector_jars()))}
    spark = embedded_session("local[2]", app_name="kafka-driver", conf=jars)
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval="300ms"),
        restart=RestartConfig(strategy="none"),
        available_now=given.available_now,
        takeover=True,
    )
    totals(given.bootstrap, given.topic, directory / "tables").run(spark, options)


if __name__ == "__main__":
    main()

"""The operations on a pipeline that reads Kafka: rewind, show, diff, adopt, eject, swap.

Commands run in this process; those that start no Spark reach the broker by confluent-kafka.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.servers.kafka import KafkaCluster
from tests.spark.kafka_pipelines import (
    copying,
    counted,
    counting,
    newest_cut,
    numbers_in,
    recreate,
    remove_before,
    rows,
    stream,
    topic_id,
)
from tests.spark.runs import options, run, table
from typer.testing import CliRunner

from cutwater import Pipeline, sinks
from cutwater.cli.main import app
from cutwater.errors import MoveRefused
from cutwater.ids import StepId

COUNTING = """
from pyspark.sql import functions as F
from cutwater import Pipeline, sinks


def counts(numbers):
    groups = numbers.groupBy((F.col("number") % 7).alias("key"))
    return groups.agg(F.count("*").alias("count"), F.sum("number").alias("sum"))


def read(spark, bootstrap, topic):
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", "5").load()
    return rows.select(F.col("value").cast("string").cast("long").alias("number"))


def create(bootstrap: str, topic: str, into: str) -> Pipeline:
    made = Pipeline("adopted")

    @made.source
    def numbers(spark):
        return read(spark, bootstrap, topic)

    made.step(counts, name="counts", output_mode="update")
    made.sink("table", sinks.delta(into, write="upsert", keys=["key"]), of="counts")
    return made
"""


def command(directory: Path, *words: str, form: str = "json", code: int = 0) -> Any:  # noqa: ANN401
    """Call a command; return its JSON, or its text."""
    store = ("--store", str(directory / "store"), "--output", form)
    result = CliRunner().invoke(app, [*words, *store], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if form == "json" else result.stdout


def run_twice(spark: SparkSession, kafka: KafkaCluster, directory: Path, topic: str) -> list[int]:
    """Run over 10 records, then over 6 more; return the checkpoints that the two runs ended at."""
    pipeline = copying(kafka, directory / "table", {"subscribe": topic})
    kafka.produce(topic, rows(range(10)), partition=0)
    first = run(pipeline, spark, options(directory, available_now=True))
    kafka.produce(topic, rows(range(10, 14)), partition=0)
    kafka.produce(topic, rows(range(14, 16)), partition=1)
    second = run(pipeline, spark, options(directory, available_now=True))
    assert first.last_checkpoint is not None
    assert second.last_checkpoint is not None
    return [first.last_checkpoint, second.last_checkpoint]


def test_offsets_are_shown_by_partition(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("shown", 2)
    before, after = map(str, run_twice(spark, kafka, tmp_path, topic))

    shown = command(tmp_path, "checkpoints", "show", "copying", after)
    text = command(tmp_path, "checkpoints", "show", "copying", after, form="text")
    diff = command(tmp_path, "checkpoints", "diff", "copying", before, after)
    diff_text = command(tmp_path, "checkpoints", "diff", "copying", before, after, form="text")

    (step,) = shown["checkpoint"]["tasks"].values()
    assert step["partitions"] == {"0:numbers": {f"{topic}-0": 14, f"{topic}-1": 2}}
    assert f"0:numbers: {topic}-0 at 14, {topic}-1 at 2" in text
    moved = {f"{topic}-0": [10, 14], f"{topic}-1": [0, 2]}
    assert diff["steps"]["table"]["partitions"] == {"0:numbers": moved}
    assert f"0:numbers: {topic}-0 10 -> 14, {topic}-1 0 -> 2" in diff_text


def test_a_rewind_asks_the_broker_what_it_still_has(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("rewound", 2)
    before, _ = run_twice(spark, kafka, tmp_path, topic)
    words = ("rewind", "copying", "--to", str(before))

    shown = command(tmp_path, *words)
    text = command(tmp_path, *words, form="text")
    command(tmp_path, *words, "--yes")
    run(
        copying(kafka, tmp_path / "table", {"subscribe": topic}),
        spark,
        options(tmp_path, available_now=True),
    )

    (source,) = shown["sources"]
    assert source["checked"]
    assert source["replayed"] == 6
    assert f"{topic}-0 14 -> 10, {topic}-1 2 -> 0; 6 offsets are read again" in text
    assert numbers_in(tmp_path / "table") == list(range(16))


def forwarding(kafka: KafkaCluster, directory: Path, topic: str, into: str | None) -> Pipeline:
    """Copy a topic to another one; without a name, to that in a column."""
    pipeline = Pipeline("forwarding")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        found = stream(spark, kafka, {"subscribe": topic})
        value = found.selectExpr("cast(number % 7 as string) key", "cast(number as string) value")
        return value if into is not None else value.selectExpr("*", f"'{topic}-into' topic")

    target = sinks.kafka(
        kafka.bootstrap, topic=into, staging=str(directory / "staging"), slot_header=True
    )
    pipeline.sink("copied", target, of=numbers)
    return pipeline


def test_a_rewind_that_leaves_a_topic_says_how_many_records_will_be_there_twice(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic, into = kafka.make_topic("left", 1), kafka.make_topic("left-into", 1)
    pipeline = forwarding(kafka, tmp_path, topic, into)
    kafka.produce(topic, rows(range(10)))
    before = run(pipeline, spark, options(tmp_path, available_now=True)).last_checkpoint
    kafka.produce(topic, rows(range(10, 16)))
    run(pipeline, spark, options(tmp_path, available_now=True))
    words = ("rewind", "forwarding", "--to", str(before))

    refused = command(tmp_path, *words, code=1)
    preview = command(tmp_path, *words, "--leave-sinks", form="text")
    command(tmp_path, *words, "--leave-sinks", "--yes")
    run(pipeline, spark, options(tmp_path, available_now=True))

    assert f"Kafka cannot remove the 6 records written to topic {into}" in refused["refused"][0]
    assert "6" in preview
    copied = kafka.read(into)
    numbers = [int(message.value() or b"") for message in copied]
    assert numbers == [*range(10), *range(10, 16), *range(10, 16)]
    headers = [dict(message.headers() or ())["cutwater-slot"] for message in copied]
    slots = [int(str(header).rstrip("'").split("/")[-1]) for header in headers]
    assert max(slots[:16]) < min(slots[16:]), "a consumer can recognize what came later"


@pytest.mark.parametrize("into", ["forked-into", None])
def test_a_fork_does_not_write_to_the_topics_of_its_original(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, into: str | None
) -> None:
    name = f"forked{'' if into else '-by-column'}"
    topic = kafka.make_topic(name, 1)
    kafka.make_topic(f"{name}-into", 1)
    kafka.make_topic(f"{name}-other", 1)
    kafka.produce(topic, rows(range(10)))
    original = forwarding(kafka, tmp_path, topic, into)
    last = run(original, spark, options(tmp_path, available_now=True)).last_checkpoint
    command(tmp_path, "fork", "forwarding", "trial", "--from", str(last))
    kafka.produce(topic, rows(range(10, 16)))
    given = options(tmp_path, available_now=True, name="trial")

    with pytest.raises(MoveRefused, match="copied"):
        run(forwarding(kafka, tmp_path, topic, f"{name}-into"), spark, given)
    with pytest.raises(MoveRefused, match="copied"):
        run(forwarding(kafka, tmp_path, topic, None), spark, given)
    if into is not None:
        run(forwarding(kafka, tmp_path, topic, f"{name}-other"), spark, given)
        copied = [int(message.value() or b"") for message in kafka.read(f"{name}-other")]
        assert copied == list(range(10, 16))
    assert len(kafka.read(f"{name}-into")) == 10


def test_a_rewind_to_records_that_are_gone_is_refused(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("rewound-gone", 2)
    before, _ = run_twice(spark, kafka, tmp_path, topic)
    words = ("rewind", "copying", "--to", str(before))
    remove_before(kafka, topic, 0, 12)

    gone = command(tmp_path, *words, code=1)
    recreate(kafka, topic)
    other = command(tmp_path, *words, code=1)

    assert (
        f"{topic}-0 resumes at offset 10, and the broker has removed the 2 records before 12; "
        in (gone["refused"][0])
    )
    assert f"topic {topic} was deleted and recreated since" in other["refused"][0]


def test_a_rewind_without_an_answer_of_the_broker_says_why(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.make_topic("rewound-unasked", 2)
    before, _ = run_twice(spark, kafka, tmp_path, topic)
    words = ("rewind", "copying", "--to", str(before))

    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "confluent_kafka", None)
        missing = command(tmp_path, *words)
    monkeypatch.setenv("CUTWATER_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("CUTWATER_KAFKA_SASL_PASSWORD", "do-not-tell")
    wrong = command(tmp_path, *words)

    assert missing["sources"][0]["checked"] is False
    assert "pip install 'cutwater[kafka]'" in missing["sources"][0]["unchecked"]
    assert wrong["sources"][0]["checked"] is False
    assert kafka.bootstrap in wrong["sources"][0]["unchecked"]
    assert "do-not-tell" not in json.dumps(wrong)


def test_a_plain_kafka_query_is_adopted_runs_on_and_is_ejected(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("adopted", 2)
    file = tmp_path / "adopting.py"
    file.write_text(COUNTING, encoding="utf-8")
    code: dict[str, Any] = {}
    exec(compile(COUNTING, str(file), "exec"), code)
    into, query = tmp_path / "table", tmp_path / "query"

    def plain(checkpoint: Path) -> dict[int, tuple[int, int]]:
        """Run the query without Cutwater over what is there; return the rows that it put out."""
        found: dict[int, tuple[int, int]] = {}

        def collect(frame: DataFrame, _: int) -> None:
            found.update({row.key: (row["count"], row["sum"]) for row in frame.collect()})

        read = code["read"](spark, kafka.bootstrap, topic)
        writer = code["counts"](read).writeStream.outputMode("update").foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return found

    kafka.produce(topic, rows(range(20)))
    plain(query)
    parameters = {"bootstrap": kafka.bootstrap, "topic": topic, "into": str(into)}
    words = [f"--param={name}={value}" for name, value in parameters.items()]
    done = command(
        tmp_path, "adopt", f"{file}:create", "--query", f"counts={query}", *words, "--yes"
    )
    (known,) = newest_cut(tmp_path, "adopted").identities[StepId("counts")].inputs
    kafka.produce(topic, rows(range(20, 40)))
    run(code["create"](**parameters), spark, options(tmp_path, available_now=True))
    command(tmp_path, "eject", "adopted", "--to", str(tmp_path / "plain"))
    kafka.produce(topic, rows(range(40, 50)))
    after = plain(tmp_path / "plain" / "counts")

    offsets = json.loads(done["queries"][0]["offsets"]["0:numbers"])
    assert sum(offsets[topic].values()) == 20
    assert dict(known.topics) == {topic: topic_id(kafka, topic)}
    assert table(into, "key", "count", "sum") == counted(range(40))
    expected = {key: (count, total) for key, count, total in counted(range(50))}
    assert after == {key: expected[key] for key in after}
    assert set(after) == {number % 7 for number in range(40, 50)}


def test_a_source_of_files_is_swapped_for_a_topic_and_the_state_is_kept(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic("swapped", 2)
    kafka.produce(topic, rows(range(20, 40)))
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    lines = "".join(f'{{"number": {number}}}\n' for number in range(20))
    (incoming / "old.json").write_text(lines, encoding="utf-8")

    def totals(*, from_topic: bool) -> Pipeline:
        pipeline = counting(kafka, tmp_path / "table", {"subscribe": topic})
        if from_topic:
            return pipeline
        other = Pipeline("counting")

        @other.source
        def numbers(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("number long").json(str(incoming))

        counts = next(node for node in pipeline.nodes if node.name == "counts")
        other.step(counts.function, name="counts", output_mode="update", partitions=2)
        target = sinks.delta(str(tmp_path / "table"), write="upsert", keys=["key"])
        other.sink("table", target, of="counts")
        return other

    run(totals(from_topic=False), spark, options(tmp_path, available_now=True))
    backfilled = table(tmp_path / "table", "key", "count", "sum")
    run(totals(from_topic=True), spark, options(tmp_path, available_now=True, swap=("numbers",)))
    kafka.produce(topic, rows(range(40, 45)))
    run(totals(from_topic=True), spark, options(tmp_path, available_now=True))

    assert backfilled == counted(range(20))
    assert table(tmp_path / "table", "key", "count", "sum") == counted(range(45))

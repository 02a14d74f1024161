"""A file of a channel that is gone or cut short is never read as fewer rows.

Whatever the session says: with `ignoreMissingFiles` and `ignoreCorruptFiles` on, Spark's own scan
would skip the file.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import options, run, table
from tests.unit.sinks.files_sink import PIPELINE, SINK, permit

from cutwater import Pipeline, RestartConfig, sinks, sources
from cutwater.errors import RunError, SinkError
from cutwater.ids import BatchId, ChannelId, Generation, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.protocol.messages import START
from cutwater.protocol.topology import inputs_of
from cutwater.runtime.channel import Channel
from cutwater.runtime.output import ChannelOutput
from cutwater.sinks.base import FrameRows, SinkContext
from cutwater.sinks.files.manifests import read_files
from cutwater.spark.analysis.analysis import channel_form
from cutwater.spark.jvm.channel_scan import ChannelScan
from cutwater.spark.jvm.internals import Internals

SETTINGS = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
READER = ReaderId(StepId("reads"), inputs_of("rows")[0])
EVENTS = 6
TOTAL = 600


@pytest.fixture
def careless(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose owner would rather have fewer rows than an error."""
    for name in SETTINGS:
        spark.conf.set(name, "true")
    yield spark
    for name in SETTINGS:
        spark.conf.unset(name)


@pytest.fixture
def channel(careless: SparkSession, tmp_path: Path) -> Iterator[Channel]:
    """A channel of six Events with 100 rows each."""
    frame = careless.range(100)
    log = ChannelLog(ChannelId("rows"), {READER: START})
    form = channel_form(frame.schema)
    made = Channel(log, tmp_path / "channel", form, Bound(10, 10**9), lambda _: None)
    for number in range(EVENTS):
        written = ChannelOutput(made).write(FrameRows(frame), BatchId(number))
        assert written.event is not None
        made.append(written.event)
    yield made
    made.close()


def files_of(channel: Channel) -> list[Path]:
    return sorted(channel.data.rglob("part-*"))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def spoil(file: Path) -> None:
    """Leave the size as it was."""
    data = file.read_bytes()
    file.write_bytes(b"x" * len(data))


@pytest.mark.parametrize("harm", [Path.unlink, cut_short])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_lost_file_is_noticed_when_the_batch_is_planned(
    careless: SparkSession, channel: Channel, harm: Callable[[Path], None], streaming: bool
) -> None:
    scan = ChannelScan(Internals(careless), channel)
    harmed = files_of(channel)[2]
    harm(harmed)

    assert scan.rows(3, EVENTS, streaming=False).count() == 300
    with pytest.raises(RunError, match=f"channel rows.*{harmed.name}"):
        scan.rows(0, EVENTS, streaming=streaming)


@pytest.mark.parametrize("harm", [Path.unlink, cut_short, spoil])
def test_a_file_that_is_lost_after_that_ends_the_batch(
    careless: SparkSession, channel: Channel, harm: Callable[[Path], None]
) -> None:
    rows = ChannelScan(Internals(careless), channel).rows(0, EVENTS, streaming=False)
    harm(files_of(channel)[2])

    with pytest.raises((PySparkException, Py4JJavaError), match="FAILED_READ_FILE"):
        rows.collect()


def test_what_was_freed_meanwhile_is_not_missed(careless: SparkSession, channel: Channel) -> None:
    """After a restore Spark asks for a range that was read before, and throws it away."""
    scan, before = ChannelScan(Internals(careless), channel), files_of(channel)
    channel.advance(READER, channel.place(2))
    channel.settle(READER)

    assert len(files_of(channel)) == len(before) * 4 // EVENTS
    assert scan.rows(0, EVENTS, streaming=False).count() == 400
    assert scan.rows(0, 2, streaming=False).count() == 0


def test_a_pipeline_that_loses_files_begins_again_and_ends_with_every_row(
    careless: SparkSession, tmp_path: Path
) -> None:
    pipeline, lost = Pipeline("lossy"), list[Path]()

    @pipeline.source(chain=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=TOTAL, partitions=1, batch_max=100)

    @pipeline.sink(sinks.delta(str(tmp_path / "values")))
    def values(numbers: DataFrame) -> DataFrame:
        # Called for every batch, when its files have been found and before they are read.
        found = sorted((tmp_path / "scratch").rglob("channel/data/*/part-*"))
        if found and not lost:
            lost.extend(found)
            for file in found:
                file.unlink()
        return numbers.select("value")

    restart = RestartConfig(strategy="fixed", attempts=3, delay="0s")
    result = run(pipeline, careless, options(tmp_path, restart=restart))

    assert lost
    assert result.finished
    assert table(tmp_path / "values", "value") == [(number,) for number in range(TOTAL)]


# -- other files of ours that Spark reads


def test_a_function_is_never_handed_fewer_rows_than_were_staged(
    careless: SparkSession, tmp_path: Path
) -> None:
    handed: list[int] = []
    target = sinks.foreach_batch(
        lambda frame, _: handed.append(frame.count()), staging=str(tmp_path)
    )
    sink = target.open(SinkContext(careless, PIPELINE, SINK))
    staged = sink.stage(FrameRows(careless.range(100)), Generation(1), BatchId(0))
    assert staged is not None
    cut_short(tmp_path / staged.blobs[1].name)

    with pytest.raises(SinkError, match="FAILED_READ_FILE"):
        sink.commit(permit(1), [staged])

    assert handed == []


def test_a_version_of_files_is_never_read_with_fewer_rows(
    careless: SparkSession, tmp_path: Path
) -> None:
    target = sinks.files(str(tmp_path), format="csv")
    sink = target.open(SinkContext(careless, PIPELINE, SINK))
    staged = sink.stage(FrameRows(careless.range(100).coalesce(1)), Generation(1), BatchId(0))
    assert staged is not None
    version = sink.commit(permit(1), [staged])
    whole = read_files(careless, target.stored(), version, SINK).count()
    (file,) = tmp_path.glob("part-*")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:50]))

    with pytest.raises(SinkError, match="bytes instead of"):
        read_files(careless, target.stored(), version, SINK)
    file.unlink()
    with pytest.raises(SinkError, match="is gone"):
        read_files(careless, target.stored(), version, SINK)

    assert whole == 100


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_rows_are_counted_while_they_are_written_also_if_there_are_none(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    rows = spark.range(10).selectExpr("id", "id % 3 AS day")
    frames = [
        rows,
        rows.where("id < 0"),
        rows.limit(0),
        spark.createDataFrame([], rows.schema),
        rows.union(rows).repartition(3),
        rows.groupBy("day").agg(F.max("id")),
    ]

    counts = [
        FrameRows(frame).write_parquet(str(tmp_path / str(number)), {}, partition_by)
        for number, frame in enumerate(frames)
    ]

    assert counts == [10, 0, 0, 0, 20, 3]

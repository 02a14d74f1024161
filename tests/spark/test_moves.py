"""Moving a pipeline in time on real Spark: back to every checkpoint, and into a fork.

What tables must show follows from arithmetic, or from what they showed before; a table's past is
read by its version from outside.
"""

import json
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.crash.operation_client import OperationClient
from tests.spark.runs import DEADLINE_S, options, run, table, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline, sinks, sources
from cutwater.errors import ConfigError, MoveRefused, PipelineHeld
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.protocol.decisions import Decision
from cutwater.runtime.reporting.status import RunStatus
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

OFTEN = CheckpointConfig(interval="200ms", min_pause="20ms", unaligned="forced", retained=1000)
COLUMNS = {"every": ("value",), "sums": ("start", "sum")}
NAME = "numbers"
SLOWLY = 4000.0
AT_ONCE = 1e6
ENDLESS = 10**9


def numbers(tables: Path, rate: float, total: int = 5000) -> Pipeline:
    """All numbers, and the sum of every thousand once the next two thousand have come."""
    made = Pipeline(NAME)

    @made.source
    def source(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=total, rate=rate, batch_max=1000)
        time = F.timestamp_seconds(F.col("value") / 1000)
        return rows.select("value", time.alias("time")).withWatermark("time", "1 second")

    @made.step
    def summed(source: DataFrame) -> DataFrame:
        sums = source.groupBy(F.window("time", "1 second")).agg(F.sum("value").alias("sum"))
        return sums.select("window.start", "sum")

    made.sink("every", sinks.delta(str(tables / "every")), of=source)
    made.sink("sums", sinks.delta(str(tables / "sums")), of=summed)
    return made


def opened(directory: Path, name: str = NAME) -> PipelineStore:
    backend = LocalBackend(directory / "store")
    return PipelineStore.of(backend, find_pipeline(backend, name))


def shown(tables: Path, versions: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """What all tables show, now or at a version of each."""
    found: dict[str, Any] = {}
    for name, columns in COLUMNS.items():
        version = None if versions is None else versions[name]
        if versions is not None and version in {None, "none"}:
            found[name] = []
            continue
        at = DeltaTable(tables / name, version=None if version is None else int(version))
        rows = at.to_pyarrow_table(columns=list(columns)).to_pylist()
        found[name] = sorted(tuple(row[column] for column in columns) for row in rows)
    return found


def versions_at(store: PipelineStore, decision: Decision) -> Mapping[str, str | None]:
    """What the sinks showed when a cut was decided and, if it commits, committed."""
    if decision.commit_point:
        return {
            str(sink): version
            for sink, version in store.commits.read(decision.slot).versions.items()
        }
    visible = store.manifests.read(decision.checkpoint_id).visible
    return {str(sink): text for sink, text in visible.items()}


def spread(decisions: tuple[Decision, ...]) -> list[Decision]:
    """The first, and one of each kind in the middle."""
    points = [decision for decision in decisions if not decision.commit_point]
    commits = [decision for decision in decisions if decision.commit_point]
    chosen = {decisions[0], points[len(points) // 2], commits[len(commits) // 2]}
    return sorted(chosen, key=lambda one: one.slot, reverse=True)


@dataclass(frozen=True)
class Begun:
    """A pipeline that has come to its end.

    Attributes:
        total: How many numbers there were.
        decisions: What it has decided on the way: cuts with rows in flight, and commit points.
        end: What its tables show.
    """

    total: int
    decisions: tuple[Decision, ...]
    end: Mapping[str, Any]


def rewound_to(
    spark: SparkSession, directory: Path, begun: Begun, decisions: list[Decision]
) -> None:
    tables, store, end = directory / "tables", opened(directory), begun.end
    for number, decision in enumerate(decisions):
        to = str(decision.checkpoint_id)
        then = versions_at(store, decision)
        if number % 2:
            # A run that starts from it goes back by itself.
            given = options(directory, checkpoint=OFTEN, start_from=to)
        else:
            before = cutwater.rewind(NAME, to=to, store=directory / "store")
            assert not before.done
            assert shown(tables) == end
            done = cutwater.rewind(NAME, to=to, store=directory / "store", yes=True)
            assert done.done
            assert shown(tables) == shown(tables, then), to
            for sink in done.sinks:
                name = str(sink.sink)
                assert (sink.rows, sink.rows_removed) == (
                    len(end[name]),
                    len(end[name]) - len(shown(tables)[name]),
                )
            given = options(directory, checkpoint=OFTEN)
        run(numbers(tables, AT_ONCE, begun.total), spark, given)
        assert shown(tables) == end, to
    rewinds = [
        decision
        for decision in store.log.read().decisions
        if decision.kind is CheckpointKind.REWIND
    ]
    origins = [
        store.log.read().at(rewind.origin) for rewind in rewinds if rewind.origin is not None
    ]
    assert origins == decisions


def begin(spark: SparkSession, directory: Path) -> Begun:
    """Run the pipeline until it has taken checkpoints of both kinds, then to its end."""
    tables = directory / "tables"
    running = numbers(tables, 2000.0, ENDLESS).start(spark, options(directory, checkpoint=OFTEN))
    wait_until(running, both_kinds, "checkpoints with and without rows in flight")
    running.kill()
    running.wait(DEADLINE_S)
    store = opened(directory)
    head = store.log.read().head
    assert head is not None
    (offset,) = store.manifests.read(head.checkpoint_id).stream_positions.values()
    total = (json.loads(offset)["sequence"] // 1000 + 3) * 1000
    run(numbers(tables, AT_ONCE, total), spark, options(directory, checkpoint=OFTEN))
    end = shown(tables)
    assert end["every"] == [(number,) for number in range(total)]
    assert [found for _, found in end["sums"]] == [
        sum(range(number, number + 1000)) for number in range(0, total - 2000, 1000)
    ]
    return Begun(total, store.log.read().decisions, end)


def both_kinds(status: RunStatus) -> bool:
    done = [checkpoint for checkpoint in status.checkpoints if checkpoint.status == "COMPLETED"]
    commits = [report for report in done if report.commit_point]
    return len(commits) >= 2 and len(done) - len(commits) >= 2


def test_a_rewind_to_any_checkpoint_and_on_to_the_end_gives_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun = begin(spark, tmp_path)
    chosen = spread(begun.decisions)

    rewound_to(spark, tmp_path, begun, chosen)
    killed_rewinds(tmp_path, str(chosen[1].checkpoint_id))
    rest = numbers(tmp_path / "tables", AT_ONCE, begun.total)
    run(rest, spark, options(tmp_path, checkpoint=OFTEN))
    assert shown(tmp_path / "tables") == begun.end


def killed_rewinds(directory: Path, to: str) -> None:
    """Kill one rewind after the other around its decision; the last one is never finished."""
    operations = OperationClient()
    for moment in (
        ("after", "log", "1"),
        ("before", "log", "2"),
        ("after", "log", "2"),
        ("after", "every", "1"),
        ("before", "committed", "1"),
        ("before", "sums", "1"),
    ):
        code, _ = operations.run(directory / "store", NAME, "rewind", to, *moment)
        assert code == -signal.SIGKILL, moment
    operations.close()
    log = opened(directory).log.read()
    assert log.head is not None
    assert log.head.slot == log.last_slot
    assert opened(directory).commits.slots()[-1] < log.last_slot


@pytest.mark.long
def test_a_rewind_to_each_checkpoint_in_any_order_and_on_to_the_end_gives_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun = begin(spark, tmp_path)

    mixed = random.Random(4).sample(begun.decisions, len(begun.decisions))
    rewound_to(spark, tmp_path, begun, mixed)


def test_a_fork_runs_beside_its_original_into_tables_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables, trial, store = tmp_path / "tables", tmp_path / "trial", tmp_path / "store"
    checkpoint = CheckpointConfig(interval="1h", retained=1000)
    original = numbers(tables, SLOWLY, ENDLESS).start(
        spark, options(tmp_path, checkpoint=checkpoint)
    )
    try:
        wait_until(original, lambda status: all(step.rows for step in status.steps), "rows")
        asked = CheckpointRequest(CheckpointKind.SAVEPOINT, "before")
        taken = original._supervisor.checkpoint(asked, DEADLINE_S)
        assert taken is not None
        with pytest.raises(PipelineHeld):
            cutwater.rewind(NAME, to="before", store=store, yes=True)
        made = cutwater.fork(NAME, "trial", start_from="before", store=store)
        position = len(table(tables / "every", "value"))
        given = options(tmp_path, checkpoint=OFTEN, name="trial", scratch=tmp_path / "scratch2")
        with pytest.raises(MoveRefused, match="every"):
            numbers(tables, AT_ONCE).start(spark, given)
        before = set(DeltaTable(tables / "every").file_uris())

        run(numbers(trial, AT_ONCE, position + 4000), spark, given)

        assert made.to == taken.id
        values = [value for (value,) in table(trial / "every", "value")]
        assert values == list(range(position, position + 4000))
        assert before <= set(DeltaTable(tables / "every").file_uris())
    finally:
        original.stop()
        original.wait(DEADLINE_S)
    count = len(table(tables / "every", "value"))
    assert table(tables / "every", "value") == [(number,) for number in range(count)]
    assert not (tables / "every" / "_cutwater" / made.pipeline_id).exists()
    # The fork is a pipeline of its own, whose first checkpoint is not kept for ever.
    assert opened(tmp_path, "trial").log.read().decisions[0].kind is CheckpointKind.CHECKPOINT


def test_files_that_were_read_since_and_are_gone_stand_against_a_rewind(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming = tmp_path / "in"
    incoming.mkdir()

    def files() -> Pipeline:
        made = Pipeline("files")

        @made.source
        def read(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("value long").json(str(incoming))

        made.sink("t", sinks.delta(str(tmp_path / "t")), of=read)
        return made

    for name in ("a", "b b"):
        (incoming / name).write_text(f'{{"value": {len(name)}}}\n')
        run(files(), spark, options(tmp_path, available_now=True))
    decisions = opened(tmp_path, "files").log.read().decisions
    shown = [versions_at(opened(tmp_path, "files"), decision)["t"] for decision in decisions]
    before = next(
        str(decision.checkpoint_id)
        for decision, version in zip(decisions, shown, strict=True)
        if version not in {None, "none", shown[-1]}
    )
    (incoming / "b b").rename(tmp_path / "hidden")

    with pytest.raises(MoveRefused, match="in/b b was read since and is gone"):
        cutwater.rewind("files", to=before, store=tmp_path / "store", yes=True)
    (tmp_path / "hidden").rename(incoming / "b b")
    done = cutwater.rewind("files", to=before, store=tmp_path / "store", yes=True)
    assert [source.checked for source in done.sources] == [True]
    assert table(tmp_path / "t", "value") == [(1,)]
    run(files(), spark, options(tmp_path, available_now=True))
    assert table(tmp_path / "t", "value") == [(1,), (3,)]


def test_what_stands_against_a_rewind_is_said_and_nothing_is_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables, store = tmp_path / "tables", tmp_path / "store"
    run(numbers(tables, AT_ONCE, 3000), spark, options(tmp_path, checkpoint=OFTEN))
    run(numbers(tables, AT_ONCE, 5000), spark, options(tmp_path, checkpoint=OFTEN))
    first, *_, last = opened(tmp_path).log.read().decisions
    to = str(first.checkpoint_id)
    write_deltalake(
        str(tables / "sums"),
        pa.table({"sum": pa.array([-1], pa.int64())}),
        mode="append",
        schema_mode="merge",
    )
    entries = opened(tmp_path).log.read().entries

    with pytest.raises(MoveRefused, match=r"sums: version .* written by another writer"):
        cutwater.rewind(NAME, to=to, store=store, yes=True)
    with pytest.raises(MoveRefused, match="written by another writer"):
        numbers(tables, AT_ONCE).start(spark, options(tmp_path, start_from=to))
    assert opened(tmp_path).log.read().entries == entries
    moved = numbers(tmp_path / "elsewhere", AT_ONCE, 5000)
    run(moved, spark, options(tmp_path, checkpoint=OFTEN))
    with pytest.raises(MoveRefused, match=r"wrote to .*tables/every since then"):
        cutwater.rewind(NAME, to=str(last.checkpoint_id), store=store, yes=True)
    with pytest.raises(ConfigError, match="there are checkpoints"):
        numbers(tables, AT_ONCE).start(spark, options(tmp_path, start_from="yesterday"))

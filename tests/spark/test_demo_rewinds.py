"""The pipeline of `make demo`, rewound to each of its checkpoints and on to the end."""

import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.runs import collected, example, options, run, wait_until

import cutwater
from cutwater import CheckpointConfig, Pipeline
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

TOTAL, RATE = 24_000, 3_000
OFTEN = CheckpointConfig(interval="1s", min_pause="100ms", retained=1000)


def auctions(tables: Path) -> Pipeline:
    made = example("auctions").create(tables=str(tables), total=str(TOTAL), rate=str(RATE))
    assert isinstance(made, Pipeline)
    return made


def shown(spark: SparkSession, tables: Path, columns: dict[str, list[str]]) -> dict[str, Any]:
    found = {}
    for name, wanted in columns.items():
        files = DeltaTable(tables / name).file_uris()
        found[name] = collected(spark.read.parquet(*files).select(*wanted)) if files else []
    return found


@pytest.mark.long
def test_the_demo_rewound_to_each_of_its_checkpoints_ends_with_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    # As `make demo` does it: killed halfway, gone on, compared with a batch computation.
    running = auctions(tables).start(spark, options(tmp_path, checkpoint=OFTEN))
    wait_until(running, lambda now: len(now.checkpoints) > 3, "checkpoints")
    running.kill()
    running.wait(60)
    run(auctions(tables), spark, options(tmp_path, checkpoint=OFTEN))
    truth = example("demo").expected(spark, TOTAL, RATE)
    columns = {name: frame.columns for name, frame in truth.items()}
    end = {name: collected(frame) for name, frame in truth.items()}
    assert all(end.values())
    assert shown(spark, tables, columns) == end
    backend = LocalBackend(tmp_path / "store")
    decisions = PipelineStore.of(backend, find_pipeline(backend, "auctions")).log.read().decisions
    assert len(decisions) >= 6

    for decision in random.Random(4).sample(decisions, len(decisions)):
        to, store = str(decision.checkpoint_id), tmp_path / "store"
        done = cutwater.rewind("auctions", to=to, store=store, yes=True)
        assert done.done
        run(auctions(tables), spark, options(tmp_path, checkpoint=OFTEN))
        assert shown(spark, tables, columns) == end, to

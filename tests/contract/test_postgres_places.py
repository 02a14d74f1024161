"""Which PostgreSQL table a sink writes to, by whatever name its server and its schema are given."""

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame
from tests.contract.test_postgres_commit import ORDERS, PIPELINE, Shop, numbers
from tests.servers.postgres import Database, PostgresServer

from cutwater import Pipeline, sinks
from cutwater.errors import PlanError, RecoveryError
from cutwater.ids import CheckpointId, Generation, SinkId, Slot
from cutwater.planning.planner import plan
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import Claim, Decision
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.context import RunContext
from cutwater.runtime.recovery import Recovery
from cutwater.sinks.base import Sink, SinkContext
from cutwater.sinks.checks import check_targets
from cutwater.sinks.places import locate_targets
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Attempt
from cutwater.store.records.targets import StoredTarget


@pytest.fixture
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Database:
    return postgres.make_database(request.node.name)


def by_other_names(database: Database) -> str:
    return database.dsn.replace("127.0.0.1", "localhost")


def place(dsn: str, table: str = "orders") -> StoredTarget:
    return locate_targets({ORDERS: sinks.postgres(dsn, table=table)})[ORDERS]


def test_one_table_is_one_target_by_whatever_name_it_is_given(
    postgres: PostgresServer, database: Database
) -> None:
    one, other = place(database.dsn), place(by_other_names(database), "public.orders")

    assert one.uri != other.uri
    assert one.is_same_as(other)
    assert not one.is_same_as(place(database.dsn, "orders2"))
    assert not one.is_same_as(place(postgres.make_database("another").dsn))


def test_two_sinks_that_replace_rows_of_one_table_are_refused_by_whatever_name(
    database: Database,
) -> None:
    database.query("CREATE TABLE totals (id bigint PRIMARY KEY)")
    pipeline = Pipeline("shop")

    @pipeline.source
    def rows() -> DataFrame:
        raise AssertionError

    for name, dsn, table in (
        ("one", database.dsn, "totals"),
        ("other", by_other_names(database), "public.totals"),
    ):
        target = sinks.postgres(dsn, table=table, write="upsert", keys=["id"])
        pipeline.sink(name, target, of=rows)

    with pytest.raises(PlanError, match=r"sink one writes to .* as well"):
        check_targets(plan(pipeline))


# -- a commit that was decided before the server had another name


def decided(shop: Shop) -> tuple[PipelineStore, tuple[object, ...]]:
    """A pipeline with one decided commit that no sink has acted on."""
    store = PipelineStore.of(MemoryBackend(), PIPELINE)
    store.log.create(Claim(Slot(1), Generation(1), "by hand"))
    store.targets.record(Generation(1), {ORDERS: place(shop.database.dsn)})
    staged = shop.stage(shop.open(), 0, *numbers(1, 2))
    cut = Cut(
        CheckpointId(1), Generation(1), CheckpointKind.CHECKPOINT, {}, commit={ORDERS: staged}
    )
    store.attempts.reserve(Attempt(CheckpointId(1), Generation(1), cut.kind, 0))
    digest = store.manifests.publish(cut)
    entry = Decision(Slot(2), Generation(1), "by hand", cut.kind, CheckpointId(1), digest, True)
    store.log.create(entry)
    return store, staged


def recover(
    store: PipelineStore, target: Sink, directory: Path, moved: tuple[str, ...] = ()
) -> None:
    targets = locate_targets({ORDERS: target}, store, moved)
    context = RunContext(
        plan=cast(Any, None),
        engine=cast(Any, None),
        store=store,
        sinks={ORDERS: target.open(SinkContext(None, PIPELINE, ORDERS))},
        options=CheckpointOptions(),
        bound=cast(Any, None),
        scratch=directory,
        targets=targets,
    )
    restore = Recovery(context, []).run()
    store.targets.record(restore.generation, targets)


def test_a_server_with_another_name_does_not_block_a_decided_commit(
    database: Database, tmp_path: Path
) -> None:
    store, _ = decided(Shop(database))

    recover(store, sinks.postgres(by_other_names(database), table="public.orders"), tmp_path)

    assert Shop(database).orders == [1, 2]


def test_a_table_that_was_moved_to_another_server_is_declared_once(
    postgres: PostgresServer, database: Database, tmp_path: Path
) -> None:
    store, _ = decided(Shop(database))
    name = f"{database.name[:40]}_moved"
    postgres.query(f'CREATE DATABASE "{name}" TEMPLATE "{database.name}"')
    moved = Database(postgres, name)
    target = sinks.postgres(moved.dsn, table="orders")

    with pytest.raises(RecoveryError, match=r"--moved orders"):
        recover(store, target, tmp_path)
    recover(store, target, tmp_path, moved=("orders",))
    recover(store, target, tmp_path)

    assert Shop(moved).orders == [1, 2]
    assert database.query("SELECT to_regclass('orders')") == [["<null>"]]


def test_a_sink_that_is_not_there_cannot_have_been_moved(database: Database) -> None:
    store = PipelineStore.of(MemoryBackend(), PIPELINE)
    target = sinks.postgres(database.dsn, table="orders")

    with pytest.raises(Exception, match="moved: there is no sink nothing"):
        locate_targets({SinkId("orders"): target}, store, ("nothing",))

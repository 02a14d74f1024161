"""A PostgreSQL sink's decisions, on a real server and without Spark: acting, repeating, rewinding.

Rows are staged here as the executors stage them, by COPY into the sink's staged tables; psql, which
is not ours, says what a reader sees.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg
import pytest
from pyspark.sql.types import LongType, StringType, StructType
from tests.servers.cutting_proxy import cutting_proxy_to
from tests.servers.postgres import Database, PostgresServer

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, CommitSink, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import CommitsAtomically, KeepsPast, SinkContext
from cutwater.sinks.commit import Groups, commit_sinks
from cutwater.sinks.postgres.catalog import TableName
from cutwater.sinks.postgres.staging import Staging
from cutwater.sinks.postgres.table import OpenPostgresTable
from cutwater.sinks.postgres.types import columns_of
from cutwater.sinks.registry import reopen

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
ORDERS, TOTALS = SinkId("orders"), SinkId("totals")
SCHEMAS = {
    ORDERS: StructType().add("id", LongType()).add("amount", LongType()),
    TOTALS: StructType().add("customer", StringType()).add("total", LongType()),
}


@dataclass
class Shop:
    """Two sinks in one database: orders are appended, totals replaced."""

    database: Database

    def open(self, sink: SinkId = ORDERS, table: str | None = None) -> OpenPostgresTable:
        keys = ["customer"] if sink == TOTALS else []
        target = sinks.postgres(
            self.database.dsn,
            table=table or str(sink),
            write="upsert" if keys else "append",
            keys=keys,
        )
        opened = target.open(SinkContext(None, PIPELINE, sink))
        assert isinstance(opened, OpenPostgresTable)
        return opened

    def stage(
        self, sink: OpenPostgresTable, batch: int, *rows: tuple[object, ...], generation: int = 1
    ) -> tuple[Committable, ...]:
        """Stage rows as two task attempts of one partition do of which the second one counts."""
        columns = columns_of(SCHEMAS[sink.sink], sink.sink)
        staging = Staging("_cutwater", PIPELINE, sink.sink)
        keys = ["customer"] if sink.sink == TOTALS else []
        place = (Generation(generation), BatchId(batch))
        names = tuple(column.name for column in columns)
        with psycopg.connect(self.database.dsn) as connection:
            table = staging.make(connection, place, sink.target, columns, keys)
            statement = staging.copy_statement(table, names)
            with connection.cursor().copy(statement.encode()) as copy:
                for task in (100 + batch, 200 + batch):
                    for row in rows:
                        copy.write_row([*row, task])
        staged = sink.describe_staged(table, place, [(200 + batch, len(rows), 10, "0" * 64)])
        assert staged is not None
        return (staged,)

    @property
    def orders(self) -> list[int]:
        return self.database.numbers("SELECT id FROM orders ORDER BY 1")

    @property
    def totals(self) -> dict[str, int]:
        rows = self.database.query("SELECT customer, total FROM totals ORDER BY 1")
        return {name: int(total) for name, total in rows}


@pytest.fixture
def shop(postgres: PostgresServer, request: pytest.FixtureRequest) -> Shop:
    return Shop(postgres.make_database(request.node.name))


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


def numbers(*ids: int) -> list[tuple[int, int]]:
    return [(number, number * 10) for number in ids]


# -- acting on a slot


def test_rows_are_invisible_until_their_commit_and_come_once(shop: Shop) -> None:
    sink = shop.open()
    staged = shop.stage(sink, 0, *numbers(1, 2, 3))
    assert shop.database.query("SELECT to_regclass('orders')") == [["<null>"]]

    version = sink.commit(permit(3), staged)

    assert shop.orders == [1, 2, 3]
    assert sink.commit(permit(3), staged) == version == "3"
    assert shop.orders == [1, 2, 3]


def test_a_slot_that_was_overtaken_is_superseded_also_by_an_empty_one(shop: Shop) -> None:
    sink, zombie = shop.open(), shop.open()
    old = shop.stage(zombie, 0, *numbers(1))
    sink.commit(permit(9), ())

    with pytest.raises(Superseded) as refused:
        zombie.commit(permit(4), old)

    assert (refused.value.slot, refused.value.newer) == (4, 9)
    assert zombie.commit(permit(9), ()) == "9"
    assert shop.database.query("SELECT to_regclass('public.orders')") == [["<null>"]]


def test_concurrent_commits_of_one_slot_take_effect_once(shop: Shop) -> None:
    staged = shop.stage(shop.open(), 0, *numbers(*range(500)))
    openers = [shop.open() for _ in range(4)]
    answers: list[str] = []

    def run(sink: OpenPostgresTable) -> None:
        answers.append(sink.commit(permit(1), staged))

    threads = [threading.Thread(target=run, args=(opener,)) for opener in openers]
    for one in threads:
        one.start()
    for thread in threads:
        thread.join()

    assert answers == ["1"] * 4
    assert shop.orders == list(range(500))


def test_staged_rows_that_are_gone_are_named(shop: Shop) -> None:
    sink = shop.open()
    (staged,) = shop.stage(sink, 0, *numbers(1, 2))
    assert sink.problem(staged) is None
    table = staged.blobs[0].name.partition("/")[0]
    shop.database.query(f"DELETE FROM _cutwater.{table} WHERE id = 2")

    assert "has 1 rows instead of 2" in str(sink.problem(staged))
    with pytest.raises(SinkError, match="has 1 rows instead of 2"):
        sink.commit(permit(1), [staged])

    shop.database.query(f"DROP TABLE _cutwater.{table}")
    assert "is missing" in str(sink.problem(staged))


STAGED = "SELECT relname FROM pg_class WHERE relname LIKE 's\\_%'"


def test_committed_rows_whose_staged_table_is_gone_are_not_sound(shop: Shop) -> None:
    """After a rewind to a checkpoint that carries them there would be nothing to commit."""
    sink = shop.open()
    staged = shop.stage(sink, 0, *numbers(1))
    sink.commit(permit(1), staged)
    assert sink.problem(staged[0]) is None

    sink.retain(Generation(1), {"1"}, ())

    assert shop.database.query(STAGED) == []
    assert "is missing" in str(sink.problem(staged[0]))
    assert sink.commit(permit(1), staged) == "1"


def test_a_process_that_was_paused_drops_nothing_that_its_successor_has_staged(
    shop: Shop,
) -> None:
    """A checkpoint of the successor may carry it; the paused process knows none of them."""
    paused, successor = shop.open(), shop.open()
    old = shop.stage(paused, 0, *numbers(1))
    paused.commit(permit(1), old)
    carried = shop.stage(successor, 0, *numbers(2), generation=2)
    successor.commit(permit(3), [*carried, *shop.stage(successor, 1, *numbers(3), generation=2)])

    paused.retain(Generation(1), {"1"}, ())

    assert "is missing" in str(paused.problem(old[0]))
    assert successor.problem(carried[0]) is None
    successor.restore(permit(4), "1")
    successor.commit(permit(5), carried)
    assert shop.orders == [1, 2]
    successor.retain(Generation(2), {"5"}, ())
    assert len(shop.database.query(STAGED)) == 1  # undone, so that `discard` drops it


# -- a group


def both(
    slot: int, orders: tuple[Committable, ...], totals: tuple[Committable, ...]
) -> list[CommitSink]:
    return [CommitSink(permit(slot), TOTALS, totals), CommitSink(permit(slot), ORDERS, orders)]


def test_all_sinks_of_a_database_are_committed_in_one_transaction(shop: Shop) -> None:
    opened = {ORDERS: shop.open(ORDERS), TOTALS: shop.open(TOTALS)}
    orders = shop.stage(opened[ORDERS], 0, *numbers(1, 2))
    totals = shop.stage(opened[TOTALS], 0, ("ann", 3))
    (together,) = Groups(opened).of(both(1, orders, totals))

    assert commit_sinks(opened, together) == {ORDERS: "1", TOTALS: "1"}

    ids = shop.database.query("SELECT xmin FROM orders UNION SELECT xmin FROM totals")
    assert len(ids) == 1
    assert shop.database.query(
        "SELECT sink, slot, checkpoint, rows FROM _cutwater.commits ORDER BY 1"
    ) == [["orders", "1", "101", "2"], ["totals", "1", "101", "1"]]


def test_one_sink_of_a_group_that_cannot_commit_keeps_all_of_it_back(shop: Shop) -> None:
    shop.database.query("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint)")
    shop.database.query("INSERT INTO orders VALUES (2, 0)")
    opened = {ORDERS: shop.open(ORDERS), TOTALS: shop.open(TOTALS)}
    orders = shop.stage(opened[ORDERS], 0, *numbers(1, 2))
    totals = shop.stage(opened[TOTALS], 0, ("ann", 3))
    groups = Groups(opened)
    (together,) = groups.of(both(1, orders, totals))

    with pytest.raises(SinkError) as refused:
        commit_sinks(opened, together)

    assert refused.value.sink == ORDERS
    assert "Key (id)=(2) already exists" in refused.value.reason
    assert "continues by itself" in refused.value.reason
    assert shop.database.query("SELECT to_regclass('totals')") == [["<null>"]]
    shop.database.query("DELETE FROM orders")
    # Asked again for one of them, all of them act.
    (again,) = groups.of([together[0]])
    assert commit_sinks(opened, again) == {ORDERS: "1", TOTALS: "1"}
    assert (shop.orders, shop.totals) == ([1, 2], {"ann": 3})


def test_a_rule_between_two_tables_is_checked_when_both_have_their_rows(shop: Shop) -> None:
    shop.database.query("CREATE TABLE totals (customer text PRIMARY KEY, total bigint)")
    shop.database.query(
        "CREATE TABLE orders (id bigint, amount bigint, customer text "
        "GENERATED ALWAYS AS (id::text) STORED REFERENCES totals DEFERRABLE INITIALLY DEFERRED)"
    )
    opened = {ORDERS: shop.open(ORDERS), TOTALS: shop.open(TOTALS)}
    orders = shop.stage(opened[ORDERS], 0, *numbers(1, 2))
    (first,) = Groups(opened).of(both(1, orders, shop.stage(opened[TOTALS], 0, ("1", 3))))

    with pytest.raises(SinkError, match=r"Key \(customer\)=\(2\) is not present") as refused:
        commit_sinks(opened, first)

    assert refused.value.sink == ORDERS
    more = shop.stage(opened[TOTALS], 1, ("1", 3), ("2", 4))
    (second,) = Groups(opened).of(both(1, orders, more))
    commit_sinks(opened, second)
    assert (shop.orders, shop.totals) == ([1, 2], {"1": 3, "2": 4})


def test_sinks_of_other_databases_or_without_transactions_act_alone(shop: Shop) -> None:
    other = Shop(shop.database.server.make_database("elsewhere"))
    opened: Mapping[SinkId, OpenPostgresTable] = {ORDERS: shop.open(), TOTALS: other.open(TOTALS)}

    assert isinstance(opened[ORDERS], CommitsAtomically)
    assert isinstance(opened[ORDERS], KeepsPast)
    assert [len(row) for row in Groups(opened).of(both(1, (), ()))] == [1, 1]


# -- upserts


def test_the_newest_row_of_a_key_stays(shop: Shop) -> None:
    sink = shop.open(TOTALS)
    staged = shop.stage(sink, 0, ("ann", 1), ("bob", 1))
    staged += shop.stage(sink, 1, ("bob", 7))

    sink.commit(permit(1), staged)
    sink.commit(permit(2), shop.stage(sink, 2, ("ann", 9), ("eve", 4)))

    assert shop.totals == {"ann": 9, "bob": 7, "eve": 4}


@pytest.mark.parametrize("made", [None, "CREATE TABLE totals (customer {} PRIMARY KEY, total int)"])
def test_a_key_that_comes_twice_in_a_batch_is_refused_and_nothing_stays_staged(
    postgres: PostgresServer, made: str | None
) -> None:
    shop = Shop(postgres.make_database("twice" if made is None else "twice again"))
    if made is not None:
        # PostgreSQL says which keys are the same: here it ignores case.
        icu = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
        shop.database.query(f"CREATE COLLATION anycase ({icu})")
        shop.database.query(made.format("text COLLATE anycase"))
    sink = shop.open(TOTALS)
    staged = shop.stage(sink, 0, ("ann", 1))
    again = "ann" if made is None else "ANN"

    with pytest.raises(SinkError) as refused:
        shop.stage(sink, 1, ("bob", 1), ("ann", 2), ("eve", 1), (again, 3))

    assert refused.value.code == "CW-501"
    assert refused.value.sink == TOTALS
    assert refused.value.reason.lower() == (
        "one batch has 2 rows with the key customer='ann', and none is the later one; "
        "aggregate by the key, or drop all but one row of each key, before the sink"
    )
    tables = "SELECT relname FROM pg_class WHERE relname LIKE 's\\_%' AND relkind = 'r'"
    assert [text for (text,) in shop.database.query(tables)] == [
        staged[0].blobs[0].name.partition("/")[0]
    ]
    sink.commit(permit(1), [*staged, *shop.stage(sink, 1, ("bob", 1), (again, 3))])
    assert {name.lower(): total for name, total in shop.totals.items()} == {"ann": 3, "bob": 1}


def test_an_upsert_without_an_index_on_its_keys_is_refused(shop: Shop) -> None:
    shop.database.query("CREATE TABLE totals (customer text, total bigint)")

    with pytest.raises(
        ConfigError, match=r"no primary key or unique index on exactly \(customer\)"
    ):
        shop.open(TOTALS)

    shop.database.query("CREATE UNIQUE INDEX ON totals (customer) INCLUDE (total)")
    shop.open(TOTALS)


# -- going back


def test_an_append_is_undone_without_a_column_of_ours(shop: Shop) -> None:
    shop.database.query("CREATE TABLE orders (id bigint, amount bigint)")
    shop.database.query("INSERT INTO orders VALUES (1000, 0)")
    sink = shop.open()
    for slot in (1, 2, 3):
        sink.commit(permit(slot), shop.stage(sink, slot, *numbers(slot, slot + 10)))
    shop.database.query("INSERT INTO orders VALUES (2000, 0)")
    # The transaction that wrote a row is known through everything that moves rows.
    shop.database.query("VACUUM (FREEZE) orders")
    shop.database.query("VACUUM FULL orders")

    look = sink.look_back("1")
    assert (look.version, look.rows, look.rows_then, look.obstacle) == ("3", 8, 4, None)
    assert sink.restore(permit(5), "1") == "5"
    assert sink.restore(permit(5), "1") == "5"

    assert shop.orders == [1, 11, 1000, 2000]
    sink.commit(permit(6), shop.stage(sink, 9, *numbers(6)))
    assert shop.orders == [1, 6, 11, 1000, 2000]
    assert "taken back by the rewind 5" in str(sink.look_back("3").obstacle)
    sink.restore(permit(7), None)
    assert shop.orders == [1000, 2000]


def test_an_append_is_not_undone_over_changes_of_another_writer(shop: Shop) -> None:
    sink = shop.open()
    sink.commit(permit(1), shop.stage(sink, 0, *numbers(1)))
    sink.commit(permit(2), shop.stage(sink, 1, *numbers(2, 3)))
    shop.database.query("UPDATE orders SET amount = 0 WHERE id = 2")

    obstacle = sink.look_back("1").obstacle
    assert obstacle is not None
    assert "2 rows were added since then and 1 of them are as they were" in obstacle
    with pytest.raises(SinkError, match="leave-sinks"):
        sink.restore(permit(3), "1")

    assert shop.orders == [1, 2, 3]


def test_an_upsert_is_undone_from_its_images_step_by_step(shop: Shop) -> None:
    shop.database.query(
        "CREATE TABLE totals (customer text PRIMARY KEY, total bigint, note text DEFAULT 'n')"
    )
    shop.database.query("INSERT INTO totals VALUES ('ann', 1, 'mine'), ('zoe', 26, 'n')")
    sink = shop.open(TOTALS)
    states = {}
    states["0"] = shop.totals
    rows: Sequence[tuple[tuple[str, int], ...]] = (
        (("ann", 10), ("bob", 20)),
        (("bob", 21), ("eve", 30)),
        (("ann", 11), ("eve", 31)),
        (("fay", 1),),
    )
    for slot, batch in enumerate(rows, 1):
        sink.commit(permit(slot), shop.stage(sink, slot, *batch))
        states[str(slot)] = shop.totals

    look = sink.look_back("2")
    assert (look.rows, look.rows_then, look.obstacle) == (5, 4, None)
    for slot, version in ((5, "3"), (6, "2"), (7, "1")):
        sink.restore(permit(slot), version)
        assert shop.totals == states[version]
    sink.commit(permit(8), shop.stage(sink, 8, ("ann", 77)))
    sink.restore(permit(9), None)
    assert shop.totals == states["0"]
    assert shop.database.query("SELECT note FROM totals WHERE customer = 'ann'") == [["mine"]]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE totals SET total = 5 WHERE customer = 'ann'",
        "DELETE FROM totals WHERE customer = 'ann'",
    ],
)
def test_an_upsert_is_not_undone_over_changes_of_another_writer(
    postgres: PostgresServer, change: str
) -> None:
    shop = Shop(postgres.make_database(change[:6]))
    sink = shop.open(TOTALS)
    sink.commit(permit(1), shop.stage(sink, 0, ("ann", 1), ("bob", 1)))
    sink.commit(permit(2), shop.stage(sink, 1, ("ann", 2), ("bob", 2)))
    shop.database.query(change)
    before = shop.totals

    assert "1 of the 2 rows" in str(sink.look_back("1").obstacle)
    with pytest.raises(SinkError, match="1 of the 2 rows"):
        sink.restore(permit(3), "1")

    assert shop.totals == before


def test_images_are_kept_as_long_as_a_cut_needs_them(shop: Shop) -> None:
    sink = shop.open(TOTALS)
    for slot in (1, 2, 3, 4):
        sink.commit(permit(slot), shop.stage(sink, slot, ("ann", slot), (f"c{slot}", slot)))
    images = "SELECT count(*) FROM _cutwater.undo_" + Staging("_cutwater", PIPELINE, TOTALS).id
    sink.retain(Generation(1), {None, "3"}, ())
    assert shop.database.numbers(images) == [8]

    sink.retain(Generation(1), {"3", "2"}, ())

    assert shop.database.numbers(images) == [4]
    assert "no further back than version 2" in str(sink.look_back("1").obstacle)
    sink.restore(permit(5), "2")
    assert shop.totals == {"ann": 2, "c1": 1, "c2": 2}


def test_what_a_rewind_has_lost_stays_lost_however_much_is_given_up(shop: Shop) -> None:
    sink = shop.open()
    for slot in (1, 2):
        sink.commit(permit(slot), shop.stage(sink, slot, *numbers(slot)))
    sink.restore(permit(3), "2")
    sink.restore(permit(4), "1")
    assert "taken back by the rewind 4" in str(sink.look_back("3").obstacle)

    sink.retain(Generation(1), {"3"}, ())

    assert "taken back by the rewind 4" in str(sink.look_back("3").obstacle)
    assert shop.orders == [1]


def test_there_is_no_rewind_past_a_change_of_columns(shop: Shop) -> None:
    sink = shop.open(TOTALS)
    sink.commit(permit(1), shop.stage(sink, 0, ("ann", 1)))
    shop.database.query("ALTER TABLE totals ALTER total TYPE numeric")
    sink.commit(permit(2), shop.stage(sink, 1, ("ann", 2)))
    sink.commit(permit(3), shop.stage(sink, 2, ("ann", 3)))

    assert "no further back than version 1" in str(sink.look_back(None).obstacle)
    sink.restore(permit(4), "2")
    assert shop.totals == {"ann": 2}


def rows_into(
    shop: Shop, sink: OpenPostgresTable, batch: int, *rows: tuple[int, ...], keys: int = 1
) -> Committable:
    """Stage rows of the columns k, v and x, as many as a row has, of which the first are keys."""
    schema = StructType()
    for name in "kvx"[: len(rows[0])]:
        schema.add(name, LongType())
    columns = columns_of(schema, sink.sink)
    staging = Staging("_cutwater", PIPELINE, sink.sink)
    place = (Generation(1), BatchId(batch))
    with psycopg.connect(shop.database.dsn) as connection:
        table = staging.make(connection, place, sink.target, columns, list("kvx"[:keys]))
        statement = staging.copy_statement(table, [column.name for column in columns])
        with connection.cursor().copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row([*row, 7])
    staged = sink.describe_staged(table, place, [(7, len(rows), 10, "0" * 64)])
    assert staged is not None
    return staged


def keyed_by(shop: Shop, *keys: str) -> OpenPostgresTable:
    target = sinks.postgres(shop.database.dsn, table="t", write="upsert", keys=keys)
    opened = target.open(SinkContext(None, PIPELINE, TOTALS))
    assert isinstance(opened, OpenPostgresTable)
    return opened


def test_an_upsert_of_nothing_but_keys_is_undone(shop: Shop) -> None:
    sink = keyed_by(shop, "k")
    sink.commit(permit(1), [rows_into(shop, sink, 0, (1,))])
    sink.commit(permit(2), [rows_into(shop, sink, 1, (1,), (2,))])

    assert sink.look_back("1").obstacle is None
    sink.restore(permit(3), "1")

    assert shop.database.numbers("SELECT k FROM t") == [1]


def test_an_upsert_with_other_keys_than_before_is_undone_completely(shop: Shop) -> None:
    sink = keyed_by(shop, "k")
    sink.commit(permit(1), [rows_into(shop, sink, 0, (1, 1))])
    shop.database.query("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k, v)")
    sink = keyed_by(shop, "k", "v")
    sink.commit(permit(2), [rows_into(shop, sink, 1, (1, 2), (1, 3), keys=2)])

    assert "no further back than version 1" in str(sink.look_back(None).obstacle)
    sink.restore(permit(3), "1")

    assert shop.database.query("SELECT k, v FROM t") == [["1", "1"]]


def test_batches_with_other_columns_in_one_commit_go_back_together(shop: Shop) -> None:
    shop.database.query("CREATE TABLE t (k bigint PRIMARY KEY, v bigint, x bigint)")
    sink = keyed_by(shop, "k")
    sink.commit(permit(1), [rows_into(shop, sink, 0, (1, 1), (2, 1))])
    batches = [
        rows_into(shop, sink, 1, (1, 2), (3, 3)),
        rows_into(shop, sink, 2, (2, 2, 2), (3, 4, 4), (1, 5, 5)),
    ]
    sink.commit(permit(2), batches)
    shown = "SELECT k, v, x FROM t ORDER BY k"
    assert shop.database.query(shown) == [["1", "5", "5"], ["2", "2", "2"], ["3", "4", "4"]]

    sink.restore(permit(3), "1")

    assert shop.database.query(shown) == [["1", "1", "<null>"], ["2", "1", "<null>"]]


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        (
            "ALTER TABLE orders RENAME amount TO cents",
            "ALTER TABLE orders RENAME cents TO amount",
            'column "amount" of relation "orders" does not exist',
        ),
        (
            "ALTER TABLE orders ALTER amount TYPE date USING NULL",
            "ALTER TABLE orders ALTER amount TYPE bigint USING NULL",
            'column "amount" is of type date but expression is of type bigint',
        ),
        (
            "ALTER TABLE orders ADD needed int NOT NULL",
            "ALTER TABLE orders DROP needed",
            'null value in column "needed"',
        ),
    ],
)
def test_a_table_that_has_changed_under_staged_rows_takes_them_when_it_is_put_right(
    postgres: PostgresServer, change: str, back: str, said: str
) -> None:
    shop = Shop(postgres.make_database(f"changed {change[19:30]}"))
    shop.database.query("CREATE TABLE orders (id bigint, amount bigint)")
    sink = shop.open()
    staged = shop.stage(sink, 0, *numbers(1, 2))
    shop.database.query(change)

    with pytest.raises(SinkError) as refused:
        sink.commit(permit(1), staged)

    assert said in refused.value.reason
    assert "of public.orders" in refused.value.reason or "let public.orders" in refused.value.reason
    assert "continues by itself; or stop and rewind" in refused.value.reason
    shop.database.query(back)
    sink.commit(permit(1), staged)
    assert shop.orders == [1, 2]


def test_a_table_is_made_with_the_columns_of_all_batches_that_come_first(shop: Shop) -> None:
    sink = keyed_by(shop, "k")
    batches = [
        rows_into(shop, sink, 0, (1, 1), (2, 2)),
        rows_into(shop, sink, 1, (2, 3, 4)),
    ]

    sink.commit(permit(1), batches)

    shown = "SELECT k, v, x FROM t ORDER BY k"
    assert shop.database.query(shown) == [["1", "1", "<null>"], ["2", "3", "4"]]


def test_what_a_kept_cut_carries_can_be_committed_again(shop: Shop) -> None:
    sink = shop.open()
    carried = shop.stage(sink, 0, *numbers(1))
    sink.commit(permit(2), [*carried, *shop.stage(sink, 1, *numbers(2))])
    sink.retain(Generation(1), {None}, carried)
    sink.discard(Generation(2), carried)
    sink.restore(permit(3), None)
    assert shop.orders == []

    assert sink.problem(carried[0]) is None
    sink.commit(permit(4), carried)

    assert shop.orders == [1]


def test_versions_of_a_target_before_this_one_do_not_end_its_past(shop: Shop) -> None:
    """A sink that wrote to a Delta table before: its version may be higher than any slot."""
    sink = shop.open()
    sink.commit(permit(3), shop.stage(sink, 0, *numbers(1)))
    sink.retain(Generation(1), {"5000"}, ())
    sink.commit(permit(4), shop.stage(sink, 1, *numbers(2)))
    sink.retain(Generation(1), {"5000", "3"}, ())

    assert sink.look_back("3").obstacle is None
    sink.restore(permit(5), "3")
    assert shop.orders == [1]


def test_more_staged_tables_than_one_transaction_can_lock_are_discarded(shop: Shop) -> None:
    sink = shop.open(TOTALS)
    (kept,) = shop.stage(sink, 0, ("ada", 1))
    start = "_".join(kept.blobs[0].name.split("_")[:2])
    for first in range(0, 2000, 500):
        shop.database.query(
            f"DO $$ BEGIN FOR one IN {first + 1}..{first + 500} LOOP EXECUTE "
            f"format('CREATE TABLE _cutwater.{start}_1_%s_0 (customer text)', one); "
            "END LOOP; END $$"
        )

    sink.discard(Generation(2), [kept])

    assert shop.database.query(STAGED) == [[kept.blobs[0].name.partition("/")[0]]]


def test_what_older_generations_staged_is_discarded_and_nothing_else(shop: Shop) -> None:
    sink = shop.open()
    old, kept, new = (
        shop.stage(sink, 0, *numbers(1), generation=1)[0],
        shop.stage(sink, 1, *numbers(2), generation=1)[0],
        shop.stage(sink, 0, *numbers(3), generation=2)[0],
    )

    sink.discard(Generation(2), [kept])

    assert [sink.problem(committable) is None for committable in (old, kept, new)] == [
        False,
        True,
        True,
    ]


# -- ways to a database


def test_a_table_is_found_again_by_what_a_store_remembers(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = shop.open()
    sink.commit(permit(1), shop.stage(sink, 0, *numbers(1)))
    inline = sinks.postgres(shop.database.dsn, table="orders").stored()
    monkeypatch.setenv("SHOP_DSN", shop.database.dsn)
    named = sinks.postgres("env:SHOP_DSN", table="orders").stored()
    called = sinks.postgres(lambda: shop.database.dsn, table="orders").stored()

    assert "do-not-tell" not in repr((inline, named, called))
    assert inline.place == named.place == called.place
    assert reopen(named, PIPELINE, ORDERS).look_back("1").rows == 1
    with pytest.raises(ConfigError, match="only the pipeline's own file"):
        reopen(called, PIPELINE, ORDERS)
    with pytest.raises(SinkError, match="password"):
        reopen(inline, PIPELINE, ORDERS)
    monkeypatch.setenv("PGPASSWORD", "do-not-tell")
    assert reopen(inline, PIPELINE, ORDERS).look_back("1").rows == 1


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://cutwater:wrong-secret@127.0.0.1:{port}/postgres",
        "postgresql://cutwater:wrong-secret@127.0.0.1:1/postgres",
        "postgresql://cutwater:wrong-secret@127.0.0.1:{port}/nowhere",
        "postgresql://cutwater:wrong-secret:more@127.0.0.1:x/p?nonsense=wrong-secret",
        "password=wrong-secret wrong-secret",
    ],
)
def test_no_error_contains_the_password(postgres: PostgresServer, dsn: str) -> None:
    target = sinks.postgres(dsn.format(port=postgres.port), table="orders")

    with pytest.raises((ConfigError, SinkError)) as refused:
        target.open(SinkContext(None, PIPELINE, ORDERS))

    told = [repr(target), target.describe(), str(refused.value), repr(refused.value)]
    assert "wrong-secret" not in " ".join(told)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


# -- a server that goes away


def test_a_server_that_was_restarted_is_found_again(postgres: PostgresServer) -> None:
    shop = Shop(postgres.make_database("restarted"))
    sink = shop.open()
    staged = shop.stage(sink, 0, *numbers(1, 2))

    postgres.stop()
    with pytest.raises(SinkError, match=r"(?i)connection|refused"):
        sink.commit(permit(1), staged)
    postgres.start()

    assert sink.problem(staged[0]) is None
    assert sink.commit(permit(1), staged) == "1"
    assert shop.orders == [1, 2]


@pytest.mark.parametrize("harm", ["connection cut", "server crashed"])
def test_a_commit_that_is_interrupted_is_repeated_and_comes_once(
    postgres: PostgresServer, harm: str
) -> None:
    """Others hold the table, so that the commit waits in the middle and can be harmed there."""
    shop = Shop(postgres.make_database(harm))
    sink = shop.open()
    sink.commit(permit(1), shop.stage(sink, 0, *numbers(1)))
    staged = shop.stage(sink, 1, *numbers(2))
    failed: list[SinkError] = []

    def commit() -> None:
        try:
            sink.commit(permit(2), staged)
        except SinkError as error:
            failed.append(error)

    with closing(psycopg.connect(shop.database.dsn)) as other:
        other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=commit)
        thread.start()
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        (pid,) = until(lambda: shop.database.numbers(waiting))
        if harm == "server crashed":
            postgres.restart()
        else:
            shop.database.query(f"SELECT pg_terminate_backend({pid})")
        thread.join(120)

    assert len(failed) == 1
    assert shop.orders == [1]
    assert sink.commit(permit(2), staged) == "2"
    assert shop.orders == [1, 2]


def test_a_commit_whose_answer_is_lost_is_found_done(shop: Shop) -> None:
    with cutting_proxy_to(shop.database.server.port) as proxy:
        target = sinks.postgres(shop.database.dsn_at(proxy.port), table="orders")
        sink = target.open(SinkContext(None, PIPELINE, ORDERS))
        staged = shop.stage(shop.open(), 0, *numbers(1, 2))
        proxy.cut_after(b"COMMIT")

        with pytest.raises(SinkError):
            sink.commit(permit(1), staged)

        assert proxy.cuts == 1
        assert until(lambda: shop.database.numbers("SELECT slot FROM _cutwater.commits")) == [1]
        assert shop.orders == [1, 2]
        assert sink.commit(permit(1), staged) == "1"
    assert shop.orders == [1, 2]
    assert shop.database.numbers("SELECT count(*) FROM _cutwater.commits") == [1]


def until(found: Callable[[], list[int]]) -> list[int]:
    """Wait for something to be found."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if there := found():
            return there
        time.sleep(0.02)
    raise AssertionError("not within two minutes")


def test_a_table_that_was_created_with_other_names_is_taken_literally(shop: Shop) -> None:
    shop.database.query('CREATE SCHEMA "My Shop"')
    shop.database.query('CREATE TABLE "My Shop"."Orders.2026" (id bigint, amount bigint)')
    sink = shop.open(table='"My Shop"."Orders.2026"')
    sink.commit(permit(1), shop.stage(sink, 0, *numbers(4)))

    assert sink.target == TableName("My Shop", "Orders.2026")
    assert shop.database.numbers('SELECT id FROM "My Shop"."Orders.2026"') == [4]


def test_a_view_and_an_unlogged_table_are_refused(shop: Shop) -> None:
    shop.database.query("CREATE VIEW orders AS SELECT 1 AS id")
    shop.database.query("CREATE UNLOGGED TABLE quick (id bigint)")

    with pytest.raises(ConfigError, match="is not a table"):
        shop.open()
    with pytest.raises(ConfigError, match="unlogged"):
        shop.open(table="quick")

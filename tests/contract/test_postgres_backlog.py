"""A backlog of staged tables on a server with few locks: committed and discarded all the same.

One transaction that touches every staged table needs a lock for each, and a server has a fixed
number of them for all transactions together: beyond it nothing is committed, however often it is
tried. Staged tables are made here by the server itself, exactly as the sink makes them.
"""

from collections.abc import Iterator

import psycopg
import pytest
from tests.contract.test_postgres_commit import ORDERS, PIPELINE, TOTALS, Shop, permit
from tests.servers.postgres import PostgresServer, postgres_server

from cutwater.ids import BatchId, Generation, SinkId
from cutwater.protocol.commit import CommitSink
from cutwater.protocol.cut import Committable
from cutwater.sinks.commit import commit_sinks
from cutwater.sinks.postgres.staging import Staging

BATCHES = 1500
SETTINGS = {"max_locks_per_transaction": "10", "max_connections": "20", "max_worker_processes": "2"}
COLUMNS = {ORDERS: ("id", "amount"), TOTALS: ("customer", "total")}


@pytest.fixture(scope="module")
def small() -> Iterator[PostgresServer]:
    """A server that has locks for a few hundred tables."""
    with postgres_server(SETTINGS) as server:
        yield server


@pytest.fixture
def shop(small: PostgresServer, request: pytest.FixtureRequest) -> Shop:
    return Shop(small.make_database(request.node.name))


def staged_at_once(
    shop: Shop, sink: SinkId, batches: int, generation: int = 1
) -> tuple[Committable, ...]:
    """Stage one row in each of many batches; every third one has a key of the batch before."""
    staging = Staging("_cutwater", PIPELINE, sink)
    key, value = COLUMNS[sink]
    kind = "bigint" if sink == ORDERS else "text"
    number = "n" if sink == ORDERS else "'c' || (n / 3)::text"
    prefix = f"_cutwater.s_{staging.id}_{generation}_"
    with psycopg.connect(shop.database.dsn, autocommit=True) as connection:
        connection.execute(
            f"""DO $$ DECLARE t text; BEGIN FOR n IN 0..{batches - 1} LOOP
                t := '{prefix}' || n || '_00000000';
                EXECUTE 'CREATE TABLE ' || t || ' ({key} {kind}, {value} bigint, _cw_task bigint)';
                EXECUTE 'COMMENT ON TABLE ' || t || ' IS ''["{key}", "{value}"]''';
                EXECUTE 'INSERT INTO ' || t || ' VALUES ($1, $2, 7), ($1, -1, 6)'
                    USING {number}, n;
                COMMIT;
            END LOOP; END $$"""
        )
    table = prefix.removeprefix("_cutwater.")
    return tuple(
        staging.committable(
            f"{table}{n}_00000000", (Generation(generation), BatchId(n)), [(7, 1, 10, "0" * 64)]
        )
        for n in range(batches)
    )


def staged_tables(shop: Shop) -> int:
    text = "SELECT count(*) FROM pg_class WHERE relname ~ '^[sm]_' AND relkind = 'r'"
    (count,) = shop.database.numbers(text)
    return count


def test_a_backlog_beyond_the_locks_of_a_server_is_committed_in_one_transaction(shop: Shop) -> None:
    orders, totals = shop.open(ORDERS), shop.open(TOTALS)
    first = staged_at_once(shop, ORDERS, BATCHES)
    second = staged_at_once(shop, TOTALS, BATCHES)
    sinks = {ORDERS: orders, TOTALS: totals}
    commands = [CommitSink(permit(3), ORDERS, first), CommitSink(permit(3), TOTALS, second)]

    assert commit_sinks(sinks, commands) == {ORDERS: "3", TOTALS: "3"}
    assert commit_sinks(sinks, commands) == {ORDERS: "3", TOTALS: "3"}

    assert shop.orders == list(range(BATCHES))
    assert shop.totals == {f"c{n // 3}": n for n in range(2, BATCHES, 3)}
    xids = shop.database.query("SELECT DISTINCT xid FROM _cutwater.commits")
    assert len(xids) == 1
    assert staged_tables(shop) == 2 * BATCHES


def test_a_backlog_beyond_the_locks_of_a_server_is_discarded(shop: Shop) -> None:
    sink = shop.open()
    (kept, *_) = staged_at_once(shop, ORDERS, BATCHES)

    sink.discard(Generation(2), [kept])

    assert staged_tables(shop) == 1
    assert sink.problem(kept) is None

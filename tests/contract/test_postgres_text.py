"""Whatever values Arrow holds, the text that COPY is sent is read back as the same values."""

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.servers.postgres import PostgresServer

from cutwater.sinks.postgres.copy import CopyJob, check_text, lines

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("whole", pa.int64()),
        ("double", pa.float64()),
        ("exact", pa.decimal128(38, 18)),
        ("at", pa.timestamp("us", "America/New_York")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("yes", pa.bool_()),
    ]
)
TABLE = """
    CREATE TEMP TABLE t (text text, whole bigint, double float8, exact numeric(38,18),
                         at timestamptz, local timestamp, day date, yes bool,
                         task bigint)
"""
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
FROM, TO = datetime(1, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001 - bounds of both kinds
ROW = st.tuples(
    st.none() | TEXT | st.sampled_from(["", "\\N", "\\.", "a\tb\nc\r\\", "NULL"]),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(),
    st.none() | st.decimals(-(10**19), 10**19, allow_nan=False, allow_infinity=False, places=18),
    st.none() | st.datetimes(FROM, TO, timezones=st.just(UTC)),
    st.none() | st.datetimes(FROM, TO),
    st.none() | st.dates(date(1, 1, 1), date(9999, 12, 31)),
    st.none() | st.booleans(),
)


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    dsn = postgres.make_database("texts").dsn
    with psycopg.connect(dsn, options="-c TimeZone=UTC") as found:
        found.execute(TABLE)
        yield found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1))
def test_values_come_back_as_they_were(
    connection: psycopg.Connection[tuple[Any, ...]], rows: list[tuple[Any, ...]]
) -> None:
    columns = [
        pa.array(row, kind) for row, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    connection.execute("TRUNCATE t")
    with connection.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write(lines(batch, 77))

    found = connection.execute("SELECT * FROM t ORDER BY ctid").fetchall()
    assert [row[-1] for row in found] == [77] * len(rows)
    assert [_plain(row[:-1]) for row in found] == [_plain(row) for row in rows]


def _plain(row: tuple[Any, ...]) -> list[object]:
    """Make values comparable: NaN is itself, and zero has a sign."""
    return [
        (repr(entry) if not math.isnan(entry) else "nan") if isinstance(entry, float) else entry
        for entry in row
    ]


def test_the_character_nul_is_refused_with_its_column() -> None:
    batch = pa.RecordBatch.from_pydict({"a": ["fine", "fine"], "b": ["fine", "x\0y"]})
    job = CopyJob({}, "", ("first", "second"), ("shop.orders", "s_1"))

    with pytest.raises(ValueError, match=r"column second of shop.orders .* NUL.*'x\\x00y'"):
        check_text(lines(batch, 1), batch, job)

    check_text(lines(batch.slice(0, 1), 1), batch.slice(0, 1), job)


def test_a_part_of_a_batch_is_written_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3], "b": [Decimal("1.50"), None, Decimal(3)]})

    assert lines(batch.slice(1, 1), 9) == b"2\t\\N\t9\n"
    assert lines(batch, 9).splitlines()[-1] == b"3\t3.00\t9"

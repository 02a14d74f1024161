"""A PostgreSQL table as a sink on real Spark: what is sent, what is refused, and that psql sees it.

What becomes of staged rows is shown without Spark, in tests/contract/test_postgres_commit.py.
"""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.servers.postgres import PASSWORD, Database, PostgresServer
from tests.spark.features import needs

from cutwater import sinks
from cutwater.errors import SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.sinks.base import FrameRows, OpenSink, SinkContext

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("all")

Open = Callable[..., OpenSink]

# Column, Spark's SQL for a value, the type in a table that we make, the value as psql shows it.
TYPES = [
    ("a_boolean", "true", "boolean", "t"),
    ("a_byte", "cast(-128 AS byte)", "smallint", "-128"),
    ("a_short", "cast(32767 AS short)", "smallint", "32767"),
    ("an_int", "-2147483648", "integer", "-2147483648"),
    ("a_long", "9223372036854775807L", "bigint", "9223372036854775807"),
    ("a_float", "cast(0.1 AS float)", "real", "0.1"),
    ("a_double", "cast(1 AS double) / 3", "double precision", "0.3333333333333333"),
    ("a_nan", "double('NaN')", "double precision", "NaN"),
    ("an_infinity", "-double('Infinity')", "double precision", "-Infinity"),
    ("a_decimal", "cast(-12.340 AS decimal(20,3))", "numeric(20,3)", "-12.340"),
    ("a_tiny", "cast('0.000000000000000001' AS decimal(38,18))", "numeric(38,18)",
     "0.000000000000000001"),
    ("a_big", "cast('12345678901234567890123456789012345678' AS decimal(38,0))",
     "numeric(38,0)", "12345678901234567890123456789012345678"),
    ("a_string", "'grün 💧'", "text", "grün 💧"),
    ("an_escape", "concat('a', char(9), 'b', char(92), 'c', char(13), char(10), char(92), '.')",
     "text", "a\tb\\c\r\n\\."),
    ("an_end", "concat('x', char(10), char(92), '.', char(10), 'y')", "text", "x\n\\.\ny"),
    ("a_null_mark", "concat(char(92), 'N')", "text", "\\N"),
    ("an_empty", "''", "text", ""),
    ("a_binary", "X'00FF5C'", "bytea", "\\x00ff5c"),
    ("no_bytes", "X''", "bytea", "\\x"),
    ("a_date", "DATE'1066-10-14'", "date", "1066-10-14"),
    ("an_instant", "TIMESTAMP'2026-03-29 02:30:00.123456 UTC'", "timestamp with time zone",
     "2026-03-29 02:30:00.123456+00"),
    ("an_old_instant", "TIMESTAMP'0001-01-01 00:00:00 UTC'", "timestamp with time zone",
     "0001-01-01 00:00:00+00"),
    ("a_local", "TIMESTAMP_NTZ'2026-03-29 02:30:00.000001'", "timestamp without time zone",
     "2026-03-29 02:30:00.000001"),
    ("a_span", "INTERVAL '1 02:03:04.000005' DAY TO SECOND", "interval", "1 day 02:03:04.000005"),
    ("a_back", "INTERVAL '-1 02:03:04.5' DAY TO SECOND", "interval", "-1 days -02:03:04.5"),
    ("months", "INTERVAL '-1-2' YEAR TO MONTH", "interval", "-1 years -2 mons"),
    ("a_time", "TIME'23:59:59.000001'", "time without time zone", "23:59:59.000001"),
    ("a_round_time", "cast('12:30' AS time(0))", "time without time zone", "12:30:00"),
    ("times", "array(TIME'00:00:01.5', null)", "time without time zone[]", "{00:00:01.5,NULL}"),
    ("time_inside", "named_struct('t', TIME'12:00:00.25')", "jsonb", '{"t": "12:00:00.25"}'),
    ("ints", "array(1, null, 3)", "integer[]", "{1,NULL,3}"),
    ("no_ints", "cast(array() AS array<int>)", "integer[]", "{}"),
    ("texts", "array('a,b', '\"', char(92), null, '', 'NULL')", "text[]",
     '{"a,b","\\"","\\\\",NULL,"","NULL"}'),
    ("instants", "array(TIMESTAMP'2026-01-01 00:00:00.000001 UTC')", "timestamp with time zone[]",
     '{"2026-01-01 00:00:00.000001+00"}'),
    ("blobs", "array(X'5C', X'')", "bytea[]", '{"\\\\x5c","\\\\x"}'),
    ("prices", "array(cast(1.5 AS decimal(5,2)))", "numeric(5,2)[]", "{1.50}"),
    ("ragged", "array(array(1), array(2, 3))", "jsonb", "[[1], [2, 3]]"),
    ("a_struct", "named_struct('x', 1, 'at', TIMESTAMP'2026-01-01 00:00:00.000001 UTC', 'n', null)",
     "jsonb", '{"n": null, "x": 1, "at": "2026-01-01T00:00:00.000001Z"}'),
    ("a_map", "map('k', array(named_struct('y', 2)))", "jsonb", '{"k": [{"y": 2}]}'),
    ("a_variant", "parse_json('{\"v\": [1, \"two\"]}')", "jsonb", '{"v": [1, "two"]}'),
]  # fmt: skip


@pytest.fixture
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Database:
    return postgres.make_database(request.node.name)


@pytest.fixture
def open_sink(spark: SparkSession, database: Database) -> Open:
    def opened(table: str = "t", **given: object) -> OpenSink:
        target = sinks.postgres(database.dsn, table=table, **given)  # type: ignore[arg-type]
        return target.open(SinkContext(spark, PIPELINE, SINK))

    return opened


def write(sink: OpenSink, rows: DataFrame, slot: int = 1) -> None:
    staged = sink.stage(FrameRows(rows), Generation(1), BatchId(slot))
    permit = grant(PIPELINE, Slot(slot), CheckpointId(slot))
    sink.commit(permit, [] if staged is None else [staged])


@pytest.fixture
def with_times(spark: SparkSession) -> Iterator[None]:
    """Enable the type TIME, which Spark 4.3 has only on request."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@needs("the type TIME")
@pytest.mark.usefixtures("with_times")
def test_every_type_comes_through_whole_and_so_does_null(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    chosen = ", ".join(f"{value} AS {name}" for name, value, _, _ in TYPES)
    values = spark.sql(f"SELECT 1 AS id, {chosen}")
    nothing = spark.sql(
        "SELECT 2 AS id, "
        + ", ".join(f"if(id < 0, {name}, null) AS {name}" for name, *_ in TYPES)
        + f" FROM (SELECT 1 AS id, {chosen})"
    )
    assert spark.conf.get("spark.sql.session.timeZone") is not None

    write(open_sink(), values.union(nothing))

    types = database.query(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 't'::regclass AND attnum > 1 ORDER BY attnum"
    )
    assert types == [[name, kind] for name, _, kind, _ in TYPES]
    first, second = database.query("SELECT * FROM t ORDER BY id")
    shown = {name: value for name, _, _, value in TYPES}
    assert dict(zip(shown, first[1:], strict=True)) == shown
    assert second[1:] == ["<null>"] * len(TYPES)


def test_instants_do_not_depend_on_the_time_zone_of_the_session(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write(
            open_sink(),
            spark.sql(
                "SELECT timestamp_micros(1774751400123456) AS at, "
                "array(timestamp_micros(-30610224000000001)) AS more, "
                "TIMESTAMP_NTZ'2026-03-08 02:30:00' AS local"
            ),
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))

    assert database.query("SELECT * FROM t") == [
        [
            "2026-03-29 02:30:00.123456+00",
            '{"0999-12-31 23:59:59.999999+00"}',
            "2026-03-08 02:30:00",
        ]
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("id - 5", r'violates check constraint "positive".*Failing row contains \(-5, a\)'),
        ("if(id = 3, null, id)", r'null value in column "id".*Failing row contains \(null, a\)'),
    ],
)
def test_a_row_that_the_table_refuses_is_named_before_any_decision(
    spark: SparkSession, postgres: PostgresServer, value: str, reason: str
) -> None:
    database = postgres.make_database(f"refused {value}")
    rule = "NOT NULL CONSTRAINT positive CHECK (id > -5)"
    database.query(f"CREATE TABLE t (id bigint {rule}, s text)")
    target = sinks.postgres(database.dsn, table="t")
    sink = target.open(SinkContext(spark, PIPELINE, SINK))
    rows = spark.range(10).selectExpr(f"{value} AS id", "'a' AS s")

    with pytest.raises(SinkError, match=reason) as refused:
        sink.stage(FrameRows(rows), Generation(1), BatchId(0))

    assert PASSWORD not in str(refused.value)
    assert "_cw_" not in str(refused.value)
    assert database.query("SELECT relname FROM pg_class WHERE relname LIKE 's\\_%'") == []


def test_values_that_postgres_cannot_hold_are_refused_with_their_column(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    database.query("CREATE TYPE mood AS ENUM ('good', 'bad')")
    database.query(
        "CREATE TABLE t (id bigint, short varchar(3), feels mood, doc jsonb, u uuid, "
        "padded char(4), at time, there timetz(0))"
    )
    sink = open_sink()
    good = {"short": "'abc'", "feels": "'good'", "doc": "'[1]'", "u": "uuid()", "padded": "'ab'"}
    good |= {"at": "'07:30:00.5'", "there": "'07:30+02'"}
    bad = {
        "short": ("'abcd'", r"value too long for type character varying\(3\).*column short"),
        "feels": ("'so-so'", r'invalid input value for enum mood: "so-so".*column feels'),
        "doc": ("'{'", r"invalid input syntax for type json.*column doc"),
        "u": ("'1'", r"invalid input syntax for type uuid.*column u"),
        "padded": ("'abcde'", r"value too long for type character\(4\).*column padded"),
        "at": ("'25:00'", r"date/time field value out of range.*column at"),
    }
    bad |= {"short ": ("concat('a', char(0))", r"column short of public.t has a text with")}

    write(sink, spark.range(1).selectExpr("id", *(f"{v} AS {name}" for name, v in good.items())))
    for name, (value, reason) in bad.items():
        chosen = {**good, name.strip(): value}
        rows = spark.range(3).selectExpr("id", *(f"{v} AS {text}" for text, v in chosen.items()))
        with pytest.raises(SinkError, match=reason):
            sink.stage(FrameRows(rows), Generation(1), BatchId(5))

    assert database.query("SELECT padded, at, there FROM t") == [
        ["ab  ", "07:30:00.5", "07:30:00+02"]
    ]


@needs("the type TIME")
@pytest.mark.usefixtures("with_times")
def test_spark_types_with_a_length_are_texts_and_a_time_goes_into_a_time(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    database.query("CREATE TABLE t (c char(5), v varchar(5), w text[], at time(3))")
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        rows = spark.sql(
            "SELECT cast('ab' AS char(3)) AS c, cast('abc' AS varchar(9)) AS v, "
            "array(cast('q' AS varchar(2)), null) AS w, TIME'01:02:03.4567' AS at"
        )
        assert rows.schema.simpleString().startswith("struct<c:char(3),v:varchar(9),")
        write(open_sink(), rows)
        write(open_sink("made"), rows.select("c", "v", "w"), slot=2)
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")

    assert database.query("SELECT * FROM t") == [["ab   ", "abc", "{q,NULL}", "01:02:03.457"]]
    assert database.query("SELECT * FROM made") == [["ab ", "abc", "{q,NULL}"]]
    kinds = "SELECT data_type FROM information_schema.columns WHERE table_name = 'made'"
    assert database.query(kinds) == [["text"], ["text"], ["ARRAY"]]
    sink, dates = open_sink(), FrameRows(spark.sql("SELECT current_date() AS at"))
    with pytest.raises(SinkError, match=r"column at of public.t is time.*, and the rows have date"):
        sink.stage(dates, Generation(1), BatchId(9))


def test_an_existing_table_is_checked_and_the_column_is_named(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    database.query(
        "CREATE DOMAIN cents AS numeric(6,2); "
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, n bigint, price cents, "
        "at timestamptz, twice bigint GENERATED ALWAYS AS (n * 2) STORED, "
        "made date NOT NULL DEFAULT '2026-01-01')"
    )
    sink = open_sink()
    one = spark.range(1)
    for expression, reason in {
        "id AS missing": "public.t has no column missing; add it",
        "id AS N": "has no column N; it has n, which is another name",
        "'a' AS n": "column n of public.t is bigint, and the rows have text",
        "cast(1 AS decimal(7,2)) AS price": "column price of public.t is cents",
        "TIMESTAMP_NTZ'2026-01-01' AS at": "column at of public.t is timestamp with time zone",
        "id AS twice": "column twice of public.t is generated by PostgreSQL",
        "null AS n": "column n has no type; cast it",
        "id AS `_cw_x`": "column _cw_x has a name",
    }.items():
        with pytest.raises(SinkError, match=reason):
            sink.stage(FrameRows(one.selectExpr(expression)), Generation(1), BatchId(0))

    write(sink, one.selectExpr("cast(7 AS int) AS n", "cast(1.5 AS decimal(4,2)) AS price"))
    assert database.query("SELECT * FROM t") == [["1", "7", "1.50", "<null>", "14", "2026-01-01"]]
    database.query("ALTER TABLE t ADD needed text NOT NULL DEFAULT '-'")
    database.query("ALTER TABLE t ALTER needed DROP DEFAULT")
    with pytest.raises(SinkError, match=r"column needed of public.t is NOT NULL without a default"):
        sink.stage(FrameRows(one.selectExpr("id AS n")), Generation(1), BatchId(1))


def test_an_upsert_refuses_keys_that_come_twice_or_are_null(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    sink = open_sink(write="upsert", keys=["k"])
    write(sink, spark.range(10).repartition(3).selectExpr("id AS k", "1 AS v"))
    write(sink, spark.range(5, 15).selectExpr("id AS k", "2 AS v"), slot=2)

    expected = [[str(number), "2" if number >= 5 else "1"] for number in range(15)]
    assert database.query("SELECT k, v FROM t ORDER BY k") == expected
    # In other tasks, so that only the whole batch shows it.
    twice = spark.range(0, 20, numPartitions=4).selectExpr("if(id = 19, 0, id) AS k", "3 AS v")
    with pytest.raises(SinkError, match="one batch has 2 rows with the key k=0, and none is the"):
        sink.stage(FrameRows(twice), Generation(1), BatchId(3))
    with pytest.raises(SinkError, match='null value in column "k"'):
        sink.stage(
            FrameRows(spark.sql("SELECT cast(null AS bigint) AS k, 1 AS v")),
            Generation(1),
            BatchId(3),
        )


def test_staging_again_replaces_what_was_staged_and_no_rows_leave_nothing(
    spark: SparkSession, open_sink: Open, database: Database
) -> None:
    sink = open_sink()
    rows = FrameRows(spark.range(100))
    tables = "SELECT relname FROM pg_class WHERE relname LIKE 's\\_%' AND relkind = 'r'"

    first = sink.stage(rows, Generation(1), BatchId(0))
    second = sink.stage(rows, Generation(1), BatchId(0))

    assert first is not None
    assert second is not None
    assert (first.rows, second.rows) == (100, 100)
    assert sink.problem(first) is not None
    assert sink.problem(second) is None
    assert len(database.query(tables)) == 1
    assert sink.stage(FrameRows(spark.range(0)), Generation(1), BatchId(1)) is None
    assert len(database.query(tables)) == 1


def test_no_plan_of_spark_shows_the_password(
    spark: SparkSession, open_sink: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    open_sink().stage(FrameRows(spark.range(5)), Generation(1), BatchId(0))

    jvm = spark._jvm
    assert jvm is not None
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    newest = store.execution(store.executionsList().last().executionId()).get()
    told = newest.physicalPlanDescription() + newest.details() + "".join(capfd.readouterr())
    assert "MapInArrow" in told
    assert PASSWORD not in told
    assert PASSWORD not in str(spark.sparkContext.getConf().getAll())

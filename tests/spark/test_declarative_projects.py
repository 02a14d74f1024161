"""Declarative projects in a session: what becomes of their datasets, and the rows of their tables.

`tests/cli/test_declarative_on_spark.py` compares whole projects with `spark-pipelines` itself.
"""

import pytest
from tests.servers.kafka import KafkaCluster
from tests.spark.declarative_files import NEEDS_PIPELINES, ProjectFiles, steps_of
from tests.spark.runs import options, run

from cutwater.errors import ConfigError, PlanError

pytestmark = NEEDS_PIPELINES


@pytest.mark.matrix
def test_views_tables_flows_and_sinks_become_nodes_of_their_names(files: ProjectFiles) -> None:
    files.define(
        "more.py",
        f"""
        @dp.temporary_view
        def even():
            return spark.readStream.table("orders").where("id % 2 = 0")

        dp.create_streaming_table("merged")

        @dp.append_flow(target="merged")
        def small():
            return spark.readStream.table("even").select("id")

        @dp.append_flow(target="merged", name="large")
        def _():
            return spark.readStream.table("shop.orders").select("id", F.lit("x").alias("mark"))

        dp.create_sink("out", "parquet", {{"path": "{files.directory / "out"}"}})

        @dp.append_flow(target="out")
        def written():
            return spark.readStream.table("merged")

        @dp.temporary_view
        def unused():
            return spark.readStream.table("orders")
        """,
    )
    files.deliver(1, 2, 3)

    project = files.load()
    files.run()

    assert steps_of(project) == {
        "orders-flow": ("orders-flow",),
        "merged-flows": ("even", "small-flow", "large-flow", "merged-flows"),
        "orders": ("orders",),
        "merged": ("merged",),
        "out": ("written-flow", "out"),
    }
    merged = [(1, "x"), (2, "x"), (2, None), (3, "x")]
    assert files.rows("merged") == sorted(merged, key=str)
    out = files.spark.read.parquet(str(files.directory / "out"))
    assert sorted((tuple(row) for row in out.collect()), key=str) == sorted(merged, key=str)


@pytest.mark.matrix
def test_sql_files_are_read_by_sparks_own_parser_and_views_are_published(
    files: ProjectFiles,
) -> None:
    files.define(
        "gold.sql",
        """
        -- a comment; with a semicolon
        CREATE STREAMING TABLE big COMMENT 'it''s; big' TBLPROPERTIES ('a' = 'b')
        AS WITH named AS (SELECT id, 'x;y' AS text FROM STREAM(orders))
        SELECT named.id, text FROM named WHERE id > 1;

        CREATE TEMPORARY VIEW odd AS SELECT * FROM STREAM orders WHERE id % 2 = 1;
        CREATE STREAMING TABLE both;
        CREATE FLOW one AS INSERT INTO both BY NAME SELECT id FROM STREAM odd;
        CREATE FLOW two AS INSERT INTO both BY NAME SELECT orders.id FROM STREAM shop.orders;
        CREATE VIEW shouted AS SELECT upper(text) AS text FROM names;
        CREATE VIEW names AS SELECT text FROM big;
        CREATE MATERIALIZED VIEW texts AS SELECT text, count(*) AS n FROM names GROUP BY text;
        """,
    )
    files.deliver(1, 2, 3)

    files.run()

    assert files.rows("big") == [(2, "x;y"), (3, "x;y")]
    assert files.rows("both") == [(1,), (1,), (2,), (3,), (3,)]
    assert files.rows("names") == [("x;y",), ("x;y",)]
    assert files.rows("shouted") == [("X;Y",), ("X;Y",)]
    assert files.rows("texts") == [("x;y", 2)]
    described = files.spark.sql("DESCRIBE TABLE EXTENDED shop.big").collect()
    assert ("Comment", "it's; big") in [(row[0], row[1]) for row in described]


def test_a_common_table_of_several_streams_may_be_aggregated_but_not_passed_by(
    files: ProjectFiles,
) -> None:
    files.define(
        "gold.sql",
        """
        CREATE MATERIALIZED VIEW twice AS
        WITH both AS (SELECT shop FROM orders UNION ALL SELECT shop FROM orders)
        SELECT shop, count(*) AS n FROM both GROUP BY shop;
        """,
    )
    files.deliver(1, 2, 3)
    files.run()

    assert files.rows("twice") == [("a", 2), ("b", 4)]
    files.define(
        "gold.sql",
        """
        CREATE MATERIALIZED VIEW twice AS
        WITH counts AS (SELECT shop, count(*) AS n FROM orders GROUP BY shop),
             rows AS (SELECT shop, id FROM orders)
        SELECT * FROM counts UNION ALL SELECT * FROM rows;
        """,
    )
    (problem,) = files.problems()
    assert "a part of it is not aggregated" in problem


def test_a_view_that_is_read_in_place_has_the_columns_of_its_table(files: ProjectFiles) -> None:
    files.define(
        "gold.sql",
        """
        CREATE MATERIALIZED VIEW parted PARTITIONED BY (id)
        AS SELECT CAST(id AS string) AS id, shop FROM orders;
        CREATE MATERIALIZED VIEW both
        AS SELECT shop, CAST(id AS string) AS id FROM orders UNION ALL SELECT * FROM parted;
        """,
    )
    files.deliver(1, 2)

    files.run()

    assert files.spark.table("shop.parted").columns == ["shop", "id"]
    assert files.rows("both") == [("a", "2"), ("a", "2"), ("b", "1"), ("b", "1")]


@pytest.mark.parametrize(
    ("before", "after"), [("id > 0", "id > 2"), ("shop <> 'x#1'", "shop <> 'x#2'")]
)
def test_a_changed_query_of_a_view_is_refused_until_it_is_as_it_was(
    files: ProjectFiles, before: str, after: str
) -> None:
    view = """
        CREATE MATERIALIZED VIEW counts AS
        SELECT shop, count(*) AS n FROM orders WHERE {condition} GROUP BY shop;
        """
    files.define("gold.sql", view.format(condition=before))
    files.deliver(1, 2, 3)
    files.run()
    files.define("gold.sql", view.format(condition=after))
    files.deliver(4)

    with pytest.raises(ConfigError, match=r"shop\.counts: its query has changed"):
        files.run()
    files.define("gold.sql", view.format(condition=before))
    files.run()

    assert files.rows("counts") == [("a", 2), ("b", 2)]


def test_a_changed_query_is_refused_even_if_it_gave_no_rows(files: ProjectFiles) -> None:
    view = "CREATE MATERIALIZED VIEW large AS SELECT id FROM orders WHERE id > {least};"
    files.define("gold.sql", view.format(least=100))
    files.deliver(1, 2, 3)
    files.run()
    files.define("gold.sql", view.format(least=2))

    with pytest.raises(ConfigError, match=r"shop\.large: its query has changed"):
        files.run()


def test_a_streaming_table_does_not_become_a_materialized_view(files: ProjectFiles) -> None:
    files.define(
        "gold.sql", "CREATE STREAMING TABLE large AS SELECT id FROM STREAM orders WHERE id > 2;"
    )
    files.deliver(1, 2, 3)
    files.run()
    files.define(
        "gold.sql", "CREATE MATERIALIZED VIEW large AS SELECT id FROM orders WHERE id > 1;"
    )

    with pytest.raises(ConfigError, match=r"shop\.large: it holds rows that were not computed by"):
        files.run()


def test_an_empty_text_that_divides_a_table_is_null_for_its_readers(files: ProjectFiles) -> None:
    files.define(
        "parted.py",
        """
        @dp.table(partition_cols=["shop"])
        def parted():
            return spark.readStream.table("orders").select("id", "shop")

        @dp.materialized_view
        def counts():
            return spark.read.table("parted").groupBy("shop").count()
        """,
    )
    (files.incoming / "0.json").write_text('{"id": 1, "shop": ""}\n{"id": 2, "shop": "a"}', "utf-8")

    files.run()

    assert files.rows("parted") == [(1, None), (2, "a")]
    assert files.rows("counts") == [("a", 1), (None, 1)]


def test_a_table_that_would_go_on_in_another_place_is_refused(files: ProjectFiles) -> None:
    files.deliver(1)
    files.run()
    files.deliver(2)
    files.spark.sql("CREATE DATABASE IF NOT EXISTS elsewhere")
    project = files.load(database="elsewhere")

    with pytest.raises(ConfigError, match=r"orders: its rows are at .*half of the table"):
        run(project.pipeline, files.spark, options(files.directory, available_now=True))
    files.run()

    assert [row[0] for row in files.rows("orders")] == [1, 2]


@pytest.mark.matrix
def test_materialized_views_have_the_rows_of_a_recomputation_after_every_run(
    files: ProjectFiles,
) -> None:
    (files.directory / "shops.csv").write_text("a,north\nb,south\n", encoding="utf-8")
    files.define(
        "views.py",
        f"""
        @dp.materialized_view
        def shops():
            return spark.read.schema("shop string, place string").csv("{files.directory}/shops.csv")

        @dp.materialized_view
        def northern():
            return spark.sql("SELECT shop FROM shops WHERE place = 'north'")

        @dp.table
        def placed():
            return spark.readStream.table("orders").join(spark.read.table("shops"), "shop")

        @dp.materialized_view
        def named():
            return spark.table("orders").select("id", F.upper("shop").alias("shop"))

        @dp.materialized_view
        def per_shop():
            counts = spark.read.table("named").groupBy("shop").agg(F.count("*").alias("n"))
            return counts.where("n > 1").orderBy("shop")

        @dp.materialized_view
        def pairs():
            left, right = spark.read.table("orders"), spark.read.table("placed")
            return left.join(right, "id").select("id", "place")

        @dp.materialized_view
        def per_place():
            left, right = spark.read.table("orders"), spark.read.table("placed")
            joined = left.join(right, "id").where("id < 100")
            return joined.groupBy("place").agg(F.max("id").alias("last"), F.count("*").alias("n"))
        """,
    )
    files.deliver(1, 2, 3)
    files.run()
    first = {name: files.rows(name) for name in ("per_shop", "per_place", "pairs", "northern")}
    (files.directory / "shops.csv").write_text("a,north\nb,north\n", encoding="utf-8")
    files.deliver(4, 5)

    files.run()

    assert first == {
        "per_shop": [("B", 2)],
        "per_place": [("north", 2, 1), ("south", 3, 2)],
        "pairs": [(1, "south"), (2, "north"), (3, "south")],
        "northern": [("a",)],
    }
    assert files.rows("shops") == [("a", "north"), ("b", "north")]
    assert files.rows("northern") == [("a",), ("b",)]
    assert files.rows("per_shop") == [("A", 2), ("B", 3)]
    assert files.rows("per_place") == [("north", 5, 3), ("south", 3, 2)]
    again = files.spark.sql(
        "SELECT place, max(o.id), count(*) FROM shop.orders o JOIN shop.placed p ON o.id = p.id "
        "WHERE o.id < 100 GROUP BY place"
    )
    assert sorted(tuple(row) for row in again.collect()) == files.rows("per_place")


@pytest.mark.matrix
def test_a_watermark_ends_at_a_table_and_passes_through_a_view(files: ProjectFiles) -> None:
    files.define(
        "windows.py",
        """
        from pyspark.sql import SparkSession

        @dp.temporary_view
        def timed():
            return SparkSession.active().readStream.table("orders").withWatermark("at", "1 second")

        @dp.table
        def seconds():
            spark = SparkSession.builder.getOrCreate()
            windows = spark.readStream.table("timed").groupBy(F.window("at", "2 seconds"))
            return windows.count().select(F.col("window.end").alias("end"), "count")

        @dp.table
        def minutes():
            rows = spark.readStream.table("seconds").withWatermark("end", "1 second")
            return rows.groupBy(F.window("end", "4 seconds")).agg(F.sum("count").alias("n"))
        """,
    )
    files.deliver(*range(20))

    files.run()
    files.deliver(40)
    files.run()

    steps = steps_of(files.load())
    assert steps["seconds-flow"] == ("timed", "seconds-flow")
    assert steps["minutes-flow"] == ("minutes-flow", "minutes")
    assert [row[1] for row in files.rows("seconds")] == [2] * 10
    assert sum(row[1] for row in files.rows("minutes")) == 14


def test_a_flow_may_read_a_table_twice_call_functions_and_give_its_own_sql(
    files: ProjectFiles,
) -> None:
    files.define(
        "twice.py",
        """
        def double(value):
            return 2 * value

        @dp.table
        def doubled():
            twice = F.udf(double, "long")
            return spark.readStream.table("orders").select(twice("id").alias("id"))

        @dp.table
        def paired():
            left = spark.readStream.table("orders").select("id", "shop")
            right = spark.readStream.table("orders").select("id", F.col("shop").alias("other"))
            return left.join(right, "id")

        @dp.table
        def narrow():
            columns = [name for name in spark.table("doubled").columns if name != "at"]
            return spark.readStream.table("orders").select(*columns)

        @dp.table
        def by_sql():
            return spark.sql("WITH o AS (SELECT id FROM STREAM(orders)) SELECT id + 1 AS id FROM o")
        """,
    )
    files.deliver(1, 2)

    files.run()

    assert files.rows("doubled") == [(2,), (4,)]
    assert files.rows("paired") == [(1, "b", "b"), (2, "a", "a")]
    assert files.rows("by_sql") == [(2,), (3,)]
    assert files.rows("narrow") == [(1,), (2,)]


def test_a_file_may_use_the_session_while_it_is_imported(files: ProjectFiles) -> None:
    files.spark.conf.set("shop.least", "2")
    files.define(
        "imported.py",
        """
        from pyspark.sql import SparkSession

        LEAST = int(SparkSession.active().conf.get("shop.least"))
        ID = F.col("id")

        @dp.table
        def large():
            return spark.readStream.table("orders").where(ID >= LEAST)
        """,
    )
    files.deliver(1, 2, 3)

    files.run()

    assert [row[0] for row in files.rows("large")] == [2, 3]


def test_declared_columns_and_partitions_are_those_of_the_catalog(files: ProjectFiles) -> None:
    files.define(
        "declared.py",
        """
        @dp.table(schema="shop string, id long", partition_cols=["shop"], comment="by shop")
        def by_shop():
            return spark.readStream.table("orders").select("id", "shop")

        @dp.table
        def all_of_it():
            return spark.readStream.table("by_shop")
        """,
    )
    files.deliver(1, 2)

    files.run()

    assert files.spark.table("shop.by_shop").columns == ["id", "shop"]
    assert files.spark.table("shop.all_of_it").columns == ["id", "shop"]
    assert files.rows("by_shop") == [(1, "b"), (2, "a")]
    assert files.spark.sql("SHOW PARTITIONS shop.by_shop").count() == 2


def test_a_table_with_rows_of_another_program_is_refused(files: ProjectFiles) -> None:
    files.spark.sql("CREATE TABLE shop.orders (id long, shop string, at timestamp) USING parquet")
    files.spark.sql("INSERT INTO shop.orders VALUES (1, 'a', now())")

    with pytest.raises(ConfigError, match="which Cutwater has not committed, such as rows of"):
        files.run()


def test_a_database_that_does_not_exist_is_refused_with_its_line(files: ProjectFiles) -> None:
    with pytest.raises(PlanError) as refused:
        files.load(database="nowhere")

    spec = files.directory / "spark-pipeline.yml"
    assert refused.value.problems == (
        f"{spec}:3: there is no database nowhere; create it, or name another",
    )


def test_only_the_catalog_and_the_database_are_parameters(files: ProjectFiles) -> None:
    with pytest.raises(ConfigError, match="size: no such parameter; a declarative project takes"):
        files.load(size="1")


def test_a_flow_may_keep_state_over_a_stream_from_outside(files: ProjectFiles) -> None:
    files.define(
        "orders.py",
        f"""
        @dp.temporary_view
        def arriving():
            files = spark.readStream.schema("id long, shop string, at timestamp")
            return files.json("{files.incoming}")

        @dp.table
        def orders():
            files = spark.readStream.schema("id long, shop string, at timestamp")
            return files.json("{files.incoming}").dropDuplicates(["id"])

        @dp.table
        def windows():
            files = spark.readStream.schema("id long, at timestamp").json("{files.incoming}")
            timed = files.withWatermark("at", "1 second").groupBy(F.window("at", "2 seconds"))
            return timed.count().select(F.col("window.start").alias("start"), "count")

        @dp.table
        def first():
            return spark.readStream.table("arriving").where("id < 3")

        @dp.table
        def second():
            return spark.readStream.table("arriving").where("id >= 3")

        @dp.table
        def late():
            return spark.readStream.table("windows").where("count > 0")
        """,
    )
    files.deliver(1, 2, 3)
    files.run()
    (files.incoming / "again.json").write_text((files.incoming / "1.json").read_text("utf-8"))
    files.deliver(9)

    files.run()

    assert [row[0] for row in files.rows("orders")] == [1, 2, 3, 9]
    assert [row[0] for row in files.rows("first")] == [1, 1, 2, 2]
    assert [row[0] for row in files.rows("second")] == [3, 3, 9]
    assert files.rows("late") == files.rows("windows")
    assert steps_of(files.load())["arriving"] == ("arriving",)


def test_tables_of_other_programs_are_read_as_they_are(files: ProjectFiles) -> None:
    files.spark.sql("CREATE TABLE shop.others (id long) USING parquet")
    files.spark.sql("INSERT INTO shop.others VALUES (1), (2)")
    files.define(
        "others.sql",
        """
        CREATE MATERIALIZED VIEW fixed AS SELECT max(id) AS last FROM others;
        CREATE STREAMING TABLE streamed AS SELECT id FROM STREAM(others);
        """,
    )
    files.deliver(1)

    files.run()

    assert files.rows("fixed") == [(2,)]
    assert files.rows("streamed") == [(1,), (2,)]


def test_a_table_is_not_computed_from_the_files_of_another(files: ProjectFiles) -> None:
    table = files.directory / "shop" / "orders"
    files.deliver(1)
    files.run()
    files.define(
        "files.py",
        f"""
        @dp.materialized_view
        def copied():
            return spark.read.parquet("{table}")
        """,
    )

    assert files.problems() == [
        f"files.py:4: flow copied reads file:{table}, which is table spark_catalog.shop.orders; "
        "read it by its name."
    ]


def test_topics_of_kafka_are_read_and_written_exactly_once(
    files: ProjectFiles, kafka: KafkaCluster
) -> None:
    kafka.make_topic("declared-in", partitions=1)
    kafka.make_topic("declared-out", partitions=1)
    options = f'.option("kafka.bootstrap.servers", "{kafka.bootstrap}")'
    files.define(
        "orders.py",
        f"""
        @dp.table
        def orders():
            reader = spark.readStream.format("kafka").option("subscribe", "declared-in"){options}
            rows = reader.option("startingOffsets", "earliest").load()
            return rows.select(F.col("value").cast("string").alias("value"))

        dp.create_sink(
            "out",
            "kafka",
            {{"kafka.bootstrap.servers": "{kafka.bootstrap}", "topic": "declared-out"}},
        )

        @dp.append_flow(target="out")
        def shouted():
            return spark.readStream.table("orders").select(F.upper("value").alias("value"))
        """,
    )
    kafka.produce("declared-in", [(None, "a"), (None, "b")])
    files.run()
    kafka.produce("declared-in", [(None, "c")])

    files.run()

    assert files.rows("orders") == [("a",), ("b",), ("c",)]
    assert sorted(message.value() or b"" for message in kafka.read("declared-out")) == [
        b"A",
        b"B",
        b"C",
    ]

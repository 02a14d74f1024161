"""What Cutwater refuses of a declarative project: all of it at once, with file, line and reason.

The messages are those of docs/how-to/run-a-declarative-pipeline.md, word by word.
"""

import re
from importlib.metadata import version

import pytest
from tests.cli.command import ROOT
from tests.spark.declarative_files import NEEDS_PIPELINES, ProjectFiles

from cutwater.errors import PlanError

pytestmark = NEEDS_PIPELINES

PAGE = (ROOT / "docs" / "how-to" / "run-a-declarative-pipeline.md").read_text("utf-8")

REFUSED = {
    "changes.py": """
        dp.create_streaming_table("customers")
        dp.create_auto_cdc_flow(target="customers", source="orders", keys=["id"], sequence_by="at")
        """,
    "expectations.py": """
        @dp.expect("valid", "id > 0")
        @dp.table
        def valid():
            return spark.readStream.table("orders")
        """,
    "once.py": """
        @dp.append_flow(target="orders", once=True)
        def backfill():
            return spark.range(1)
        """,
    "databricks.py": "import dlt",
    "settings.py": """
        @dp.table(spark_conf={"spark.sql.shuffle.partitions": "3"})
        def tuned():
            return spark.readStream.table("orders")
        """,
    "settings.sql": """
        SET spark.sql.shuffle.partitions = 3;
        USE DATABASE default;
        SELECT 1;
        CREATE STREAMING TABEL typo;
        """,
    "clustered.py": """
        @dp.table(cluster_by=["id"])
        def clustered():
            return spark.readStream.table("orders")
        """,
    "formats.py": """
        @dp.table(format="delta")
        def in_delta():
            return spark.readStream.table("orders")

        @dp.table(format="orc")
        def in_orc():
            return spark.readStream.table("orders")
        """,
    "partitions.sql": """
        CREATE STREAMING TABLE bucketed PARTITIONED BY (bucket(4, id))
        AS SELECT * FROM STREAM orders;
        """,
    "inserts.sql": """
        CREATE STREAMING TABLE copied;
        CREATE FLOW more AS INSERT INTO copied SELECT * FROM STREAM orders
        """,
    "catalog_view.sql": "CREATE VIEW renamed (a) AS SELECT id FROM orders",
    "sinks.py": """
        dp.create_sink("shown", "console")
        dp.create_sink("rows", "json", {"path": "rows"})
        dp.create_sink("topic", "kafka", {"kafka.bootstrap.servers": "b:1", "kafka.acks": "1"})
        dp.create_sink("lake", "delta", {"tableName": "lake"})

        for sink in ("shown", "rows", "topic", "lake"):
            @dp.append_flow(target=sink, name=f"to_{sink}")
            def flow():
                return spark.readStream.table("orders")
        """,
    "flows.py": """
        dp.create_streaming_table("empty")

        @dp.append_flow(target="gone")
        def lost():
            return spark.readStream.table("orders")
        """,
    "batch.py": """
        @dp.table
        def fixed():
            return spark.range(3)

        @dp.table
        def from_table():
            return spark.read.table("orders")

        @dp.table
        def beside():
            ids = spark.read.table("orders").select("id")
            return spark.readStream.table("orders").join(ids, "id")

        @dp.table
        def from_view():
            return spark.readStream.table("counts")
        """,
    "outside.py": """
        @dp.table
        def mixed():
            other = spark.readStream.format("rate").load().withColumnRenamed("value", "id")
            return spark.readStream.table("orders").join(other, "id")
        """,
    "effects.py": """
        @dp.table
        def writing():
            spark.sql("INSERT INTO log VALUES (1)")
            return spark.readStream.table("orders")

        @dp.table
        def setting():
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            return spark.readStream.table("orders")
        """,
    "columns.py": """
        @dp.table(schema="id long, name string")
        def declared():
            return spark.readStream.table("orders").select("id", "shop")

        @dp.table(partition_cols=["day"])
        def partitioned():
            return spark.readStream.table("orders").select("id")
        """,
    "mistakes.py": """
        @dp.table
        def around():
            return spark.readStream.table("again")

        @dp.table
        def again():
            return spark.readStream.table("around")

        @dp.table
        def nothing():
            spark.readStream.table("orders")

        @dp.table
        def open_ended():
            return spark.readStream.table("orders").groupBy("shop").count()
        """,
    "views.py": """
        import time

        from pyspark.sql import Window

        @dp.materialized_view
        def counts():
            return spark.read.table("orders").groupBy("shop").count()

        @dp.materialized_view
        def streamed():
            return spark.readStream.table("orders")

        @dp.materialized_view
        def total():
            return spark.read.table("orders").agg(F.count("*"))

        @dp.materialized_view
        def sampled():
            return spark.read.table("orders").where(F.rand() < 0.1)

        @dp.materialized_view
        def unique():
            return spark.read.table("orders").dropDuplicates(["shop"])

        @dp.materialized_view
        def shops():
            return spark.sql("SELECT DISTINCT shop FROM orders")

        @dp.materialized_view
        def few():
            return spark.read.table("orders").limit(3)

        @dp.materialized_view
        def sorted_ids():
            return spark.read.table("orders").orderBy("id")

        @dp.materialized_view
        def numbered():
            number = F.row_number().over(Window.partitionBy("shop").orderBy("at"))
            return spark.read.table("orders").withColumn("number", number)

        @dp.materialized_view
        def listed():
            return spark.read.table("orders").groupBy("shop").agg(F.collect_list("id"))

        @dp.materialized_view
        def counted_twice():
            return spark.read.table("counts").groupBy("count").agg(F.count("*"))

        @dp.materialized_view
        def late():
            rows = spark.read.table("orders").withWatermark("at", "1 minute")
            return rows.groupBy("shop").count()

        @dp.materialized_view
        def different():
            return spark.read.table("orders").groupBy("shop").agg(F.count_distinct("id"))

        @dp.materialized_view
        def outer():
            orders = spark.read.table("orders")
            return orders.join(orders.select("id"), "id", "left")

        @dp.materialized_view
        def later():
            orders = spark.read.table("orders")
            return orders.join(orders.select(F.col("id").alias("other")), F.expr("id < other"))

        @dp.materialized_view
        def beside_counts():
            orders = spark.read.table("orders")
            counts = orders.groupBy("shop").agg(F.count("*").alias("n"))
            return counts.unionByName(orders.select("shop", F.col("id").alias("n")))

        @dp.materialized_view
        def recent():
            return spark.read.table("orders").where(F.col("id") < F.lit(time.time_ns()))

        @dp.materialized_view
        def twice():
            return spark.sql("SELECT id, id FROM orders")

        @dp.materialized_view
        def with_others():
            names = spark.createDataFrame([("a", "north")], "shop string, place string")
            return spark.read.table("orders").join(names, "shop")
        """,
}


def test_everything_that_is_refused_is_reported_together_as_the_page_says(
    files: ProjectFiles,
) -> None:
    for name, text in REFUSED.items():
        files.define(name, text)

    problems = files.problems()

    messages = [re.sub(r"^\S+:\d+: ", "", problem) for problem in problems]
    assert [message for message in messages if message not in PAGE] == []
    places = {problem.split(":", 1)[0] for problem in problems}
    assert places == set(REFUSED)
    assert len(problems) == 51


def test_two_tables_that_the_catalog_takes_for_one_are_refused(files: ProjectFiles) -> None:
    files.define(
        "names.sql",
        """
        CREATE STREAMING TABLE Big AS SELECT * FROM STREAM orders;
        CREATE STREAMING TABLE big AS SELECT * FROM STREAM orders;
        """,
    )

    (problem,) = files.problems()

    assert problem.startswith(
        "names.sql:3: streaming table big has the name of streaming table Big"
    )


@pytest.mark.skipif(version("pyspark") < "4.3", reason="AUTO CDC is in the SQL of Spark 4.3")
def test_changes_are_refused_in_sql_too(files: ProjectFiles) -> None:
    files.define(
        "changes.sql",
        """
        CREATE STREAMING TABLE history;
        CREATE FLOW changed AS AUTO CDC INTO history FROM STREAM orders KEYS (id) SEQUENCE BY at;
        """,
    )

    (problem,) = files.problems()

    place, _, message = problem.partition(": ")
    assert place == "changes.sql:3"
    assert message in PAGE


@pytest.mark.skipif(version("pyspark") < "4.3", reason="AUTO CDC is in the SQL of Spark 4.3")
def test_a_table_of_changes_is_refused_once_and_not_for_its_readers(files: ProjectFiles) -> None:
    files.define(
        "changes.sql",
        """
        CREATE STREAMING TABLE history
        FLOW AUTO CDC FROM STREAM orders KEYS (id) SEQUENCE BY at;
        CREATE STREAMING TABLE copied AS SELECT * FROM STREAM history;
        """,
    )

    (problem,) = files.problems()

    place, _, message = problem.partition(": ")
    assert place == "changes.sql:2"
    assert message.startswith("flow history applies changes (AUTO CDC)")


EFFECTS = {
    "view.py": (
        """
        @dp.table
        def through_view():
            spark.readStream.table("orders").createOrReplaceTempView("shared")
            return spark.sql("SELECT * FROM STREAM shared")
        """,
        "calls DataFrame.createOrReplaceTempView, and all flows share one session; declare a "
        "temporary view of the project",
    ),
    "function.py": (
        """
        spark.udf.register("doubled", lambda number: 2 * number, "long")
        """,
        "calls spark.udf.register, and all flows share one session; call the function itself, "
        "which F.udf returns",
    ),
    "setting.py": (
        """
        spark.conf.set("spark.sql.ansi.enabled", "false")
        """,
        "calls spark.conf.set, and all flows share one session; put settings into the "
        "configuration of the spec",
    ),
    "frames.py": (
        """
        @dp.table
        def by_frame():
            return spark.sql("SELECT * FROM {rows}", rows=spark.readStream.table("orders"))
        """,
        "has DataFrames among its parameters; combine them by their methods instead",
    ),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_what_would_change_the_session_of_other_flows_is_refused(
    files: ProjectFiles, name: str
) -> None:
    text, reason = EFFECTS[name]
    files.define(name, text)

    (problem,) = files.problems()

    assert reason in problem
    assert problem.startswith(f"{name}:")


def test_event_time_after_a_join_of_two_streams_is_refused(files: ProjectFiles) -> None:
    """The join gives rows of the slower stream, which a watermark of the result would drop."""
    files.define(
        "joined.py",
        """
        def stream(delay):
            found = spark.readStream.schema("id long, at timestamp").json("{incoming}")
            return found.withWatermark("at", delay)

        @dp.temporary_view
        def joined():
            ads, clicks = stream("10 minutes").alias("a"), stream("2 hours").alias("c")
            near = F.expr("a.id = c.id AND c.at BETWEEN a.at AND a.at + interval 1 hour")
            return ads.join(clicks, near).select("a.id", "a.at")

        @dp.table
        def counts():
            return spark.readStream.table("joined").groupBy(F.window("at", "1 hour")).count()
        """.replace("{incoming}", str(files.incoming)),
    )
    files.deliver(1)

    with pytest.raises(PlanError, match="merges from several inputs"):
        files.run()

"""Definition files are imported without Spark: what they declare, and the lines of their errors."""

import textwrap
from pathlib import Path

import pytest

from cutwater.declarative.definition_files import import_definitions
from cutwater.declarative.definitions import DatasetKind, Definitions
from cutwater.declarative.session import NeedsSpark, ProjectSession


def imported(directory: Path, text: str, name: str = "orders.py") -> Definitions:
    file = directory / name
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return import_definitions(directory, [file], ProjectSession(), "4.3.0")


def problems_of(definitions: Definitions) -> list[str]:
    return [f"{problem.place.short}: {problem.text}" for problem in definitions.problems]


def test_decorators_declare_datasets_and_flows_with_their_lines(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        """
        from pyspark import pipelines as dp
        from pyspark.sql import SparkSession

        spark = SparkSession.active()

        @dp.table(comment="all", partition_cols=["day"], table_properties={"a": "b"})
        def orders():
            return spark.readStream.table("x")

        @dp.materialized_view(name="sales.totals", format="parquet")
        def _():
            return spark.table("orders")

        @dp.temporary_view
        def valid():
            return spark.readStream.table("orders")

        dp.create_sink("out", "kafka", {"topic": "t"})

        @dp.append_flow(target="out")
        def written():
            return spark.readStream.table("valid")
        """,
    )

    assert found.problems == []
    assert [(dataset.name, dataset.kind, dataset.place.line) for dataset in found.datasets] == [
        (("orders",), DatasetKind.STREAMING_TABLE, 7),
        (("sales", "totals"), DatasetKind.MATERIALIZED_VIEW, 11),
        (("valid",), DatasetKind.TEMPORARY_VIEW, 15),
        (("out",), DatasetKind.SINK, 19),
    ]
    assert found.datasets[0].properties == {"a": "b"}
    assert found.datasets[3].options == {"topic": "t"}
    assert [(flow.name, flow.target) for flow in found.flows] == [
        (("orders",), ("orders",)),
        (("sales", "totals"), ("sales", "totals")),
        (("valid",), ("valid",)),
        (("written",), ("out",)),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x =", "orders.py:1: SyntaxError: invalid syntax (orders.py, line 1)"),
        ("\nopen('gone')", "orders.py:2: FileNotFoundError: "),
        ("raise SystemExit", "orders.py:1: SystemExit"),
        (
            "from pyspark import pipelines as dp\n@dp.expect_or_drop('a', 'b')\ndef f(): ...",
            "orders.py:2: AttributeError: module 'pyspark.pipelines' has no attribute "
            "'expect_or_drop': expectations are not part of Apache Spark",
        ),
        (
            "from pyspark import pipelines as dp\ndp.create_sink('a b', 'kafka')",
            "orders.py:2: 'a b' is no name of a table",
        ),
    ],
)
def test_an_error_is_a_problem_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems_of(imported(tmp_path, text))

    assert found.startswith(problem)


def test_other_files_are_imported_after_one_that_fails(tmp_path: Path) -> None:
    good = "from pyspark import pipelines as dp\n@dp.table\ndef orders(): ...\n"
    files = [tmp_path / name for name in ("a.py", "b.py", "c.sql", "d.txt")]
    for file, text in zip(files, ("1 / 0", good, "SELECT 1", ""), strict=True):
        file.write_text(text, encoding="utf-8")

    found = import_definitions(tmp_path, files, ProjectSession(), "4.3.0")

    assert problems_of(found) == [
        "a.py:1: ZeroDivisionError: division by zero",
        "d.txt:1: d.txt is no definition file: those end in .py or .sql; change the glob of the "
        "spec",
    ]
    assert [dataset.name for dataset in found.datasets] == [("orders",)]
    assert [file.text for file in found.sql_files] == ["SELECT 1"]


def test_a_flow_of_changes_is_refused_without_the_packages_of_connect(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        """
        from pyspark.pipelines import create_auto_cdc_flow
        create_auto_cdc_flow("people", "changes", keys=["id"], sequence_by="at")
        """,
    )

    assert problems_of(found)[0].startswith("orders.py:3: flow people applies changes (AUTO CDC)")
    assert found.refused_targets == {("people",)}


@pytest.mark.parametrize(
    "line",
    [
        "spark.conf.get('x')",
        "from pyspark.sql import functions as F; F.col('x')",
        "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().range(1)",
    ],
)
def test_a_file_that_uses_the_session_needs_spark(tmp_path: Path, line: str) -> None:
    with pytest.raises(NeedsSpark):
        imported(tmp_path, line)


def test_the_working_directory_is_that_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "schema.txt").write_text("id long", encoding="utf-8")
    before = Path.cwd()

    found = imported(
        tmp_path, "from pathlib import Path\nassert Path('schema.txt').read_text() == 'id long'"
    )

    assert found.problems == []
    assert Path.cwd() == before

"""Small declarative projects, written into a directory, loaded and run in the tests' session."""

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.features import needs
from tests.spark.runs import options, run

from cutwater.errors import PlanError
from cutwater.planning.planner import plan
from cutwater.spark.versions import DECLARATIVE_PIPELINES

if TYPE_CHECKING:
    from cutwater.declarative.project import Project

NEEDS_PIPELINES = needs(DECLARATIVE_PIPELINES.name)

ORDERS = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

@dp.table
def orders():
    return spark.readStream.schema("id long, shop string, at timestamp").json("{incoming}")
"""


class ProjectFiles:
    """A project in a directory of the test's own, and a database of that name."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory = directory
        self.spark = spark
        self.incoming = directory / "incoming"
        self.incoming.mkdir()
        (directory / "transformations").mkdir()
        self.spec("name: shop", f"storage: file://{directory / 'storage'}", "database: shop")
        self.define("orders.py", ORDERS.format(incoming=self.incoming))

    def spec(self, *lines: str) -> None:
        libraries = "libraries: [{glob: {include: transformations/**}}]"
        text = "\n".join((*lines, libraries))
        (self.directory / "spark-pipeline.yml").write_text(text, encoding="utf-8")

    def define(self, name: str, text: str) -> None:
        head = "from pyspark import pipelines as dp\nfrom pyspark.sql import functions as F\n"
        file = self.directory / "transformations" / name
        body = textwrap.dedent(text)
        file.write_text(head + body if name.endswith(".py") else body, encoding="utf-8")

    def deliver(self, *ids: int) -> None:
        lines = (
            json.dumps(
                {"id": number, "shop": "ab"[number % 2], "at": f"2026-01-01T00:00:{number:02}Z"}
            )
            for number in ids
        )
        (self.incoming / f"{min(ids)}.json").write_text("\n".join(lines), encoding="utf-8")

    def load(self, **parameters: str) -> "Project":
        # Imported here: Spark 4.0 has no declarative pipelines.
        from cutwater.declarative.project import load_project  # noqa: PLC0415

        return load_project(self.directory, parameters, lambda _: self.spark)

    def run(self, **given: Any) -> None:  # noqa: ANN401
        project = self.load()
        project.publish(self.spark)
        result = run(
            project.pipeline, self.spark, options(self.directory, available_now=True, **given)
        )
        assert result.finished

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        found = self.spark.table(f"shop.{table}").collect()
        return sorted((tuple(row) for row in found), key=str)

    def problems(self) -> list[str]:
        """What a load refuses, without the directory of the project."""
        with pytest.raises(PlanError) as refused:
            self.load()
        own = f"{self.directory / 'transformations'}/"
        return [problem.removeprefix(own) for problem in refused.value.problems]


def steps_of(project: "Project") -> dict[str, tuple[str, ...]]:
    """Every step of a project, with its nodes."""
    return {
        step.name: tuple(node.name for node in step.nodes) for step in plan(project.pipeline).steps
    }

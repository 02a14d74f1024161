"""Runs projects of Spark Declarative Pipelines on both runners, and reads their tables.

Both runners get the same settings, with a metastore of the test's own, so that the tables that one
process has made are found by the next one under their names.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark
from tests.cli.command import ROOT, SPARK_DEADLINE_S, environment, run_to_end

from cutwater.spark.session.java import find_java

SHOP = ROOT / "examples" / "shop"
TABLES = ("bronze_customers", "bronze_orders", "gold_large", "gold_revenue", "silver_orders")

_READ = """
import json, sys
from cutwater.spark.session.session import embedded_session

settings, statements, tables = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
spark = embedded_session("local[2]", conf=settings)
for statement in statements:
    spark.sql(statement)
found = {}
for name in tables:
    frame = spark.table(name)
    found[name] = {
        "columns": frame.dtypes,
        "rows": sorted([str(value) for value in row] for row in frame.collect()),
    }
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Table:
    """What a table shows: its columns with their types, and its rows as text, sorted."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Place:
    """A directory with a project in it, a warehouse and a metastore."""

    directory: Path

    @property
    def settings(self) -> dict[str, str]:
        metastore = f"jdbc:derby:;databaseName={self.directory / 'metastore'};create=true"
        return {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        }

    @property
    def flags(self) -> list[str]:
        pairs = (("--conf", f"{key}={value}") for key, value in self.settings.items())
        return [word for pair in pairs for word in pair]

    def spark_pipelines(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run `spark-pipelines` here."""
        script = Path(sys.executable).with_name("spark-pipelines")
        run = run_to_end(
            ["bash", str(script), *words],
            cwd=self.directory,
            env=_spark_environment(),
            deadline_s=SPARK_DEADLINE_S,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run

    def read(self, *tables: str, first: tuple[str, ...] = ()) -> dict[str, Table]:
        """Read tables by their names, as any program with the same catalog would."""
        words = [json.dumps(self.settings), json.dumps(first), *tables]
        run = run_to_end(
            [sys.executable, "-c", _READ, *words],
            cwd=self.directory,
            deadline_s=SPARK_DEADLINE_S,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        found = json.loads(run.stdout.splitlines()[-1])
        return {
            name: Table(tuple(map(tuple, table["columns"])), tuple(map(tuple, table["rows"])))
            for name, table in found.items()
        }


def _spark_environment() -> Mapping[str, str]:
    return {
        **environment(),
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def shop_in(directory: Path) -> Place:
    """Copy the shop to a directory, with a storage of its own and a few files to read."""
    shutil.copytree(SHOP, directory)
    spec = directory / "spark-pipeline.yml"
    storage = f"storage: file://{directory / 'storage'}"
    spec.write_text(spec.read_text("utf-8").replace("storage: file:///tmp/cutwater-shop", storage))
    for name in ("orders", "customers"):
        (directory / "incoming" / name).mkdir(parents=True)
    return Place(directory)


def deliver(place: Place, number: int) -> None:
    """Let a file of customers and one of orders arrive; some orders are of customers to come."""
    incoming = place.directory / "incoming"
    customers = "".join(
        f"{customer},name{customer},{('de', 'fr', 'us')[customer % 3]}\n"
        for customer in range(number * 10, number * 10 + 10)
    )
    orders = "".join(
        json.dumps(
            {
                "id": order,
                "customer": order * 7 % (number * 10 + 15),
                "amount": order * 13 % 200 - 10,
                "at": f"2026-01-0{number + 1}T00:{order % 60:02d}:00Z",
            }
        )
        + "\n"
        for order in range(number * 100, number * 100 + 100)
    )
    _arrive(incoming / "customers" / f"{number}.csv", customers)
    _arrive(incoming / "orders" / f"{number}.json", orders)


def _arrive(file: Path, text: str) -> None:
    """Write a file somewhere else and move it, so that no reader sees half of it."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_text(text, encoding="utf-8")
    hidden.rename(file)


def expected(deliveries: int) -> dict[str, set[tuple[str, ...]]]:
    """What the tables of the shop hold after some deliveries, computed without Spark."""
    customers, orders = {}, []
    for number in range(deliveries):
        for customer in range(number * 10, number * 10 + 10):
            customers[customer] = (f"name{customer}", ("de", "fr", "us")[customer % 3])
        for order in range(number * 100, number * 100 + 100):
            amount = order * 13 % 200 - 10
            orders.append((order, order * 7 % (number * 10 + 15), amount))
    valid = [
        (order, *customers[customer], amount)
        for order, customer, amount in orders
        if amount > 0 and customer in customers
    ]
    countries = sorted({country for _, _, country, _ in valid})
    return {
        "bronze_customers": {(str(key), *value) for key, value in customers.items()},
        "bronze_orders": {(str(order), str(customer)) for order, customer, _ in orders},
        "silver_orders": {(str(order), name, country) for order, name, country, _ in valid},
        "gold_large": {
            (str(order), name, f"{amount}.00") for order, name, _, amount in valid if amount > 100
        },
        "gold_revenue": {
            (
                country,
                str(sum(found == country for _, _, found, _ in valid)),
                f"{sum(amount for _, _, found, amount in valid if found == country)}.00",
            )
            for country in countries
        },
    }


def shown(tables: Mapping[str, Table]) -> dict[str, set[tuple[str, ...]]]:
    """The part of the shop's tables that `expected` computes; every row must be there once."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for name, table in tables.items():
        rows = [_part(name, row) for row in table.rows]
        assert len(set(rows)) == len(rows), f"{name} has a row twice"
        found[name] = set(rows)
    return found


def _part(name: str, row: tuple[str, ...]) -> tuple[str, ...]:
    if name == "silver_orders":
        return row[0], row[2], row[5]
    return row[:2] if name == "bronze_orders" else row

"""The Python of the how-to pages, in the session that the other tests share.

`make long` follows the pages word by word, commands included; this is what takes no process.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession
from tests.cli.documents import blocks, write_file

from cutwater.testing import run_batch


@contextmanager
def files_of(page: str, directory: Path) -> Iterator[dict[str, ModuleType]]:
    """Write the files of a page and import them as a program in that directory would."""
    written = [write_file(kind, text, directory) for kind, text in blocks(page)]
    # pytest has a module of that name itself, and is told by it, not by us.
    names = [path.stem for path in written if path is not None and path.stem != "conftest"]
    sys.path.insert(0, str(directory))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(directory))
        for name in names:
            sys.modules.pop(name, None)


def test_every_row_is_an_order_or_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    bodies = ['{"id": 1, "amount": 1.5}', "{", "", None, '{"id": 3}', '{"id": "x", "amount": 2}']
    raw = spark.createDataFrame([(body,) for body in bodies], "body string")

    with files_of("how-to/dead-letters.md", tmp_path) as files:
        found = run_batch(files["orders"].pipeline, {"raw": raw})

        assert [tuple(row) for row in found["good_orders"].collect()] == [(1, 1.5)]
        assert [row.body for row in found["dead_letters"].collect()] == bodies[1:]


def test_the_tests_that_a_page_shows_pass(spark: SparkSession, tmp_path: Path) -> None:
    with files_of("how-to/test-a-pipeline.md", tmp_path) as files:
        files["test_functions"].test_refunds_are_not_orders(spark)
        files["test_together"].test_totals(spark)
        files["test_stream"].test_a_restart_loses_nothing_and_repeats_nothing(spark, tmp_path)

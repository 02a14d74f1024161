"""Make the golden files of the version of Spark in use: what a later version must go on from.

python scripts/golden_versions.py

Writes `tests/golden/versions/spark-MINOR.tar.xz`: the store of a pipeline that was killed halfway,
the checkpoint directory of a plain query, and the store into which that query was adopted. A file
that is there is never made again: it is what a released version has written.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark import version_pipelines as golden
from tests.spark.runs import options, wait_until
from typer.testing import CliRunner

from cutwater import CheckpointConfig
from cutwater.cli.main import app
from cutwater.spark.session.session import embedded_session
from cutwater.spark.versions import require_version

_ROWS_BEFORE = 400


def _halfway(spark: SparkSession, directory: Path) -> None:
    """Run the pipeline until a checkpoint in the middle of its input, and kill it."""
    given = options(directory, checkpoint=CheckpointConfig(interval="1h", unaligned=False))
    running = golden.create(directory).start(spark, given)
    wait_until(
        running,
        lambda now: any(s.name == "numbers" and s.rows >= _ROWS_BEFORE for s in now.steps),
        f"{_ROWS_BEFORE} rows",
    )
    report = running.checkpoint(120)
    running.kill()
    running.wait(120)
    if report.status != "COMPLETED":
        raise SystemExit(f"the checkpoint is {report.status}")
    done = {name: rows.total() for name, rows in golden.given(directory).items()}
    total = {name: rows.total() for name, rows in golden.expected().items()}
    if not all(done.get(name, 0) < total[name] for name in total) or not done.get("pairs_rows"):
        raise SystemExit(f"it was not halfway: {done} of {total}; try again")


@contextmanager
def _work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cutwater-golden-") as made:
        yield Path(made)


def main() -> None:
    """Make them."""
    spark = embedded_session("local[2]", app_name="golden")
    name = f"spark-{require_version(spark.version).name}"
    if (golden.GOLDEN / f"{name}.tar.xz").exists():
        raise SystemExit(f"{name} is there already, and is never made again")
    with _work() as work, _work() as kept:
        _halfway(spark, work / "pipeline")
        for part in ("store", "staging", "rows"):
            (work / "pipeline" / part).rename(kept / part)
        golden.write_files(work, range(golden.BEFORE))
        golden.plain(spark, work, work / "query")
        _adopt(work)
        golden.move_files(work / "query", "/golden")
        (work / "query").rename(kept / "query")
        (work / "store").rename(kept / "adopted")
        for left in [*kept.rglob("*.crc"), *kept.rglob("*.tmp")]:
            left.unlink()
        golden.pack(kept, name)
    size = (golden.GOLDEN / f"{name}.tar.xz").stat().st_size
    sys.stdout.write(f"{name}: {size:,} bytes\n")


def _adopt(work: Path) -> None:
    (work / "adopting.py").write_text(golden.ADOPTING, encoding="utf-8")
    words = ["adopt", f"{work / 'adopting.py'}:create", "--param", f"directory={work}"]
    words += ["--query", f"totals={work / 'query'}", "--store", str(work / "store"), "--yes"]
    result = CliRunner().invoke(app, words)
    if result.exit_code:
        raise SystemExit(result.output)


if __name__ == "__main__":
    main()

"""`make demo`: run the auction pipeline, kill it halfway, resume it, and check the tables.

The pipeline runs in its own process, which gets SIGKILL once a few checkpoints are committed. A
second process resumes from the last checkpoint. At the end the three tables are compared, row by
row, with a plain batch Spark computation over the same events.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from cutwater import sources
from cutwater.ids import SinkId
from cutwater.protocol.decisions import Decision
from cutwater.spark.session.session import embedded_session
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline

HERE = Path(__file__).parent
CONSOLE = Console()
TABLES = ("high_bids", "channels", "auction_sellers")
KILLED_AT = 0.3
"""Rows visible in `high_bids`, as a share of all events, at which the process is killed."""


def command(arguments: argparse.Namespace, out: Path) -> list[str]:
    """Return the command that runs the pipeline, as typed in a shell."""
    return [
        *(sys.executable, "-m", "cutwater.cli.main", "run", f"{HERE / 'auctions.py'}:create"),
        *("--store", str(out / "store"), "--interval", "2s", "--master", "local[2]"),
        *("--param", f"tables={out}", "--param", f"total={arguments.total}"),
        *("--param", f"rate={arguments.rate}"),
    ]


def killed_halfway(arguments: argparse.Namespace, out: Path) -> bool:
    """Run the pipeline and kill it; return whether it was killed while it ran."""
    process = subprocess.Popen(command(arguments, out))
    killed = threading.Event()

    def kill_after_commits() -> None:
        while process.poll() is None:
            if visible_rows(out / "high_bids") >= KILLED_AT * arguments.total:
                killed.set()
                process.send_signal(signal.SIGKILL)
                return
            time.sleep(0.1)

    watcher = threading.Thread(target=kill_after_commits, daemon=True)
    watcher.start()
    process.wait()
    watcher.join()
    return killed.is_set()


def visible_rows(table: Path) -> int:
    """Return the number of rows that a reader of the table sees now."""
    if not (table / "_delta_log").exists():
        return 0
    return DeltaTable(table).count()


def expected(spark: SparkSession, total: int, rate: int) -> dict[str, DataFrame]:
    """Recompute the three tables as one batch over the same events."""
    events = spark.range(total)
    bids, auctions, people = (
        sources.nexmark_rows(events, kind, rate=rate) for kind in ("bid", "auction", "person")
    )
    euros = (F.col("price") * 0.92).cast("decimal(18,2)").alias("euros")
    priced = bids.select("auction", "bidder", "channel", "dateTime", euros)
    # Spark has emitted the windows that end at least two seconds before the last bid.
    last = priced.agg(F.max("dateTime").alias("last")).collect()[0]["last"]
    windows = (
        priced.groupBy(F.window("dateTime", "2 seconds"), "channel")
        .agg(F.max("euros").alias("highest"), F.count("*").alias("bids"))
        .where(F.col("window.end") <= F.lit(last) - F.expr("interval 2 seconds"))
    )
    who = people.select(F.col("id").alias("seller"), "name", "city")
    return {
        "high_bids": priced.where("euros > 1000"),
        "channels": windows.select("window.start", "channel", "highest", "bids"),
        "auction_sellers": auctions.join(who, "seller").select(
            "id", "seller", "name", "city", "category"
        ),
    }


def compare(spark: SparkSession, out: Path, total: int, rate: int) -> bool:
    """Compare every table with its recomputation; return whether all are equal."""
    shown = Table("table", "rows", "recomputed", "missing", "too many", "verdict")
    same = True
    for name, truth in expected(spark, total, rate).items():
        files = DeltaTable(out / name).file_uris()
        found = spark.read.parquet(*files).select(*truth.columns)
        missing, surplus = truth.exceptAll(found).count(), found.exceptAll(truth).count()
        same = same and not missing and not surplus
        verdict = "same" if not missing and not surplus else "[red]DIFFERENT[/]"
        shown.add_row(
            name, *(f"{one:,}" for one in (found.count(), truth.count(), missing, surplus)), verdict
        )
    CONSOLE.print(shown)
    return same


def show_checkpoints(out: Path) -> None:
    """Show every decision, its generation, and the table versions that it committed."""
    backend = LocalBackend(out / "store")
    store = PipelineStore.of(backend, find_pipeline(backend, "auctions"))
    shown = Table("checkpoint", "generation", "kept", "commit point", *TABLES)
    kept = set(store.manifests.ids())
    commits = set(store.commits.slots())
    for entry in store.log.read().entries:
        if isinstance(entry, Decision):
            versions = store.commits.read(entry.slot).versions if entry.slot in commits else {}
            shown.add_row(
                str(entry.checkpoint_id),
                str(entry.generation),
                "yes" if entry.checkpoint_id in kept else "pruned",
                "yes" if entry.commit_point else "no",
                *(versions.get(SinkId(table), "") for table in TABLES),
            )
        else:
            shown.add_section()
    CONSOLE.print(shown)


def main() -> int:
    """Run the demo; return 0 if the tables are correct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total", type=int, default=90_000, help="events of all kinds")
    parser.add_argument("--rate", type=int, default=3_000, help="events a second")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where tables go")
    arguments = parser.parse_args()
    out: Path = arguments.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    began = time.monotonic()
    CONSOLE.rule("1. The auction pipeline runs, three tables, a checkpoint every two seconds")
    if not killed_halfway(arguments, out):
        CONSOLE.print("The pipeline ended before it could be killed; see above.")
        return 1
    CONSOLE.rule("2. Killed with SIGKILL. A new process resumes from the last checkpoint")
    ended = subprocess.run(command(arguments, out), check=False).returncode
    if ended != 0:
        CONSOLE.print(f"The pipeline ended with code {ended}; see above.")
        return 1
    CONSOLE.rule("3. The tables against a batch computation over the same events")
    spark = embedded_session("local[2]", app_name="demo")
    try:
        same = compare(spark, out, arguments.total, arguments.rate)
    finally:
        spark.stop()
    show_checkpoints(out)
    verdict = "every row exactly once" if same else "[red]the tables are WRONG[/]"
    took = time.monotonic() - began
    CONSOLE.print(f"Verdict: {verdict}. Tables and store are in {out}. It took {took:.0f} s.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

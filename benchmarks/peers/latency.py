"""From a file's arrival until its rows are visible, at a fixed rate, on every engine.

One file to one table (`q1`). Cutwater and Flink take a checkpoint every second. Cutwater is there
twice: with tables that show checkpoints, and with tables that show every batch. Plain Spark starts
the next batch as soon as there are files.
"""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.latency import quantile
from benchmarks.measuring import interleaved, table
from benchmarks.peers.flink_setup import Flink
from benchmarks.peers.live import Arrivals, Live, engine, live_cases, wait_while_running
from benchmarks.peers.throughput import available
from benchmarks.peers.visible import Reader, listing_of
from benchmarks.processes import cpu_seconds


def measure(live: Live, given: Namespace) -> dict[str, Any]:
    """Let files arrive for a while; return how long each took to be seen, and the cores in use."""
    arrivals = Arrivals(live, given.every, given.file_rows)
    reader = Reader(listing_of(live.case, live.table("converted")))
    with engine(live) as process:
        arrivals.start()
        reader.start()
        try:
            wait_while_running(process, live, lambda: bool(reader.at_s), "a row was visible")
            time.sleep(given.warmup)
            first, used_s, began_s = len(arrivals.at_s), cpu_seconds(process.pid), time.time()
            time.sleep(given.seconds)
            last, used_s = len(arrivals.at_s), cpu_seconds(process.pid) - used_s
            cores = used_s / (time.time() - began_s)
            wait_while_running(
                process,
                live,
                lambda: all(number in reader.at_s for number in range(first, last)),
                "all rows were visible",
            )
        finally:
            arrivals.end()
            reader.end()
    took = [reader.at_s[number] - arrivals.at_s[number] for number in range(first, last)]
    return {"seconds": took, "cores": cores}


def run_all(given: Namespace, directory: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure every case in turn; return what was found, and what was left out."""
    engines, flink, left_out = available(given.engines.split(","))
    cases = live_cases(engines)
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
    for repeat, case in interleaved(cases, given.repeats):
        one = measure(_live(case, given, directory / f"r{repeat}-{case}", flink), given)
        found[case].append(one)
        shares = [f"{quantile(one['seconds'], share):.2f}" for share in (0.5, 0.99)]
        print(f"{case}: p50 {shares[0]} s, p99 {shares[1]} s", flush=True)
    return found, left_out


def _live(case: str, given: Namespace, home: Path, flink: Flink | None) -> Live:
    return Live(case, "q1", home, given.cores, given.live_interval, flink)


def show(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the quantiles of all rounds together."""
    rows = []
    for case, runs in found.items():
        samples = [sample for run in runs for sample in run["seconds"]]
        if samples:
            shares = [f"{quantile(samples, share):.2f}" for share in (0.5, 0.95, 0.99)]
            cores = sum(run["cores"] for run in runs) / len(runs)
            rows.append((case, *shares, f"{max(samples):.2f}", f"{cores:.2f}"))
    return table(("from event to visible", "p50 s", "p95 s", "p99 s", "most s", "cores"), rows)

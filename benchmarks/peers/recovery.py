"""From the restart after SIGKILL to the first new visible row, on every engine.

Two tables from one stream (`two`), so that there is state to restore. An engine runs until all rows
of some files are visible and its next checkpoints are past, and is killed with everything below it.
A new file arrives, a new process starts, and the clock runs from there until a row of the new file
is visible. Afterwards every row must be there once.
"""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import interleaved, spread, table
from benchmarks.peers.flink_setup import Flink
from benchmarks.peers.live import Live, drop, engine, live_cases, wait_while_running
from benchmarks.peers.throughput import available
from benchmarks.peers.visible import Reader, listing_of

_CHECKPOINTS: Final = 3
"""How many intervals pass before the kill, so that a checkpoint has everything."""


def measure(live: Live, files: int, rows: int) -> dict[str, Any]:
    """Run, kill and restart an engine; return the seconds to the first new row.

    Raises:
        RuntimeError: If it ends early, or a row is missing or there twice.
    """
    for number in range(files):
        drop(live, number, rows)
    reader = Reader(listing_of(live.case, live.table("raw")))
    reader.start()
    try:
        with engine(live) as process:
            wait_while_running(
                process, live, lambda: len(reader.at_s) >= files, "all rows were visible"
            )
            time.sleep(_CHECKPOINTS * live.interval_s)
        drop(live, files, rows)
        began_s = time.time()
        with engine(live) as process:
            wait_while_running(process, live, lambda: files in reader.at_s, "a new row was visible")
            wait_while_running(
                process, live, lambda: reader.rows[files] >= rows, "all new rows were visible"
            )
            time.sleep(2 * live.interval_s)
    finally:
        reader.end()
    wrong = [number for number in range(files + 1) if reader.rows[number] != rows]
    if wrong:
        raise RuntimeError(f"{live.case}: files whose rows are not all visible once: {wrong}")
    return {"seconds": reader.at_s[files] - began_s}


def run_all(given: Namespace, directory: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure every case in turn; return what was found, and what was left out."""
    engines, flink, left_out = available(given.engines.split(","))
    cases = [case for case in live_cases(engines) if case in engines]
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
    rows = max(1, given.rows // given.files)
    for repeat, case in interleaved(cases, given.repeats):
        live = _live(case, given, directory / f"r{repeat}-{case}", flink)
        one = measure(live, given.recovery_files, rows)
        found[case].append(one)
        print(f"{case}: {one['seconds']:.2f} s", flush=True)
    return found, left_out


def _live(case: str, given: Namespace, home: Path, flink: Flink | None) -> Live:
    return Live(case, "two", home, given.cores, given.live_interval, flink)


def show(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the seconds of each engine, beside plain Spark's."""
    middles = {
        case: spread([float(run["seconds"]) for run in runs])
        for case, runs in found.items()
        if runs
    }
    rows = []
    for case, one in middles.items():
        other = middles.get("spark")
        rows.append((case, one, f"{one.middle / other.middle:.2f}" if other else "–"))
    return table(("after SIGKILL", "s to the first new visible row", "/spark"), rows)

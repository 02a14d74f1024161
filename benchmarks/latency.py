"""How long until a row is seen: from its arrival to its visibility in a Delta table.

Small files arrive in a directory, one every tenth of a second, each with one number; a pipeline
appends them to a Delta table, and a reader of its own looks at the table's log. A number arrives
when its file gets its name and is seen when a version that holds it is there. Visibility at
checkpoints, every five seconds and every second, and of every batch run in one session, in turn.

    python -m benchmarks.latency [--seconds S] [--cases checkpoint:5s,checkpoint:1s,batch:5s]
"""

import json
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from benchmarks.measuring import (
    DEADLINE_S,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from pyspark.sql import DataFrame, SparkSession

from cutwater import CheckpointConfig, Pipeline, RestartConfig, sinks
from cutwater.run import RunOptions

SMOKE: Final = {"seconds": 4.0, "warmup": 4.0, "repeats": 1, "cases": "checkpoint:1s,batch:1s"}
_LOOK_S: Final = 0.005


def pipeline(incoming: Path, target: Path, visibility: str) -> Pipeline:
    made = Pipeline("latency")

    @made.source
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("number long").json(str(incoming))

    made.sink("seen", sinks.delta(str(target), visibility=visibility), of=numbers)
    return made


class Arrivals:
    """Lets files arrive, one after the other, and notes when each did."""

    def __init__(self, directory: Path, every_s: float) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at_s: dict[int, float] = {}

    def _run(self) -> None:
        unfinished = self._directory.parent / "unfinished.json"
        next_s = time.monotonic()
        while not self._ended.wait(max(0.0, next_s - time.monotonic())):
            number = len(self.at_s)
            unfinished.write_text(json.dumps({"number": number}) + "\n")
            unfinished.rename(self._directory / f"{number:09d}.json")
            self.at_s[number] = time.monotonic()
            next_s += self._every_s

    def start(self) -> None:
        """Let the first one arrive."""
        self._thread.start()

    def end(self) -> None:
        """Let no more arrive."""
        self._ended.set()
        self._thread.join()


class Reader:
    """Looks at a table's log without end and notes when each number was first seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._next = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at_s: dict[int, float] = {}

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Read the versions that are new."""
        while (entry := self._root / f"_delta_log/{self._next:020d}.json").exists():
            seen_s = time.monotonic()
            for number in added(self._root, entry.read_text()):
                self.at_s.setdefault(number, seen_s)
            self._next += 1

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> int:
        """End; return how many versions there were."""
        self._ended.set()
        self._thread.join()
        return self._next


def added(root: Path, entry: str) -> list[int]:
    """Return the numbers in the files that a version has added."""
    actions = [json.loads(line) for line in entry.splitlines() if line]
    files = [root / unquote(action["add"]["path"]) for action in actions if "add" in action]
    return [
        int(number)
        for file in files
        for number in pq.read_table(file, columns=["number"]).column("number").to_pylist()
    ]


def measure(spark: SparkSession, case: str, given: Namespace, directory: Path) -> dict[str, Any]:
    """Let numbers arrive for a while; return how long each took to be seen."""
    visibility, _, interval = case.partition(":")
    target = directory / "table"
    arrivals, reader = Arrivals(directory / "incoming", given.every), Reader(target)
    options = RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=CheckpointConfig(interval=interval),
        restart=RestartConfig(strategy="none"),
    )
    run = pipeline(directory / "incoming", target, visibility).start(spark, options)
    arrivals.start()
    reader.start()
    try:
        # The table is made by the first commit, whatever the visibility.
        wait_for(lambda: reader.at_s or None, "the first number to be seen", run)
        time.sleep(given.warmup)
        first = len(arrivals.at_s)
        time.sleep(given.seconds)
        last = len(arrivals.at_s)
        wait_for(lambda: len(reader.at_s) >= last or None, "all numbers to be seen", run)
    finally:
        arrivals.end()
        run.kill()
        run.wait(DEADLINE_S)
        versions = reader.end()
    took = [reader.at_s[number] - arrivals.at_s[number] for number in range(first, last)]
    return {"seconds": took, "versions": versions}


def run_all(given: Namespace) -> dict[str, list[dict[str, Any]]]:
    cases = given.cases.split(",")
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
    with session(given.master) as spark, workspace(given) as directory:
        for repeat, case in interleaved(cases, given.repeats):
            one = measure(spark, case, given, directory / f"r{repeat}-{case.replace(':', '-')}")
            print(f"{case}: {spread(one['seconds'])} s", flush=True)
            found[case].append(one)
    return found


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the sample that this share of all is not above."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = []
    for case, runs in found.items():
        visibility, _, interval = case.partition(":")
        samples = [sample for run in runs for sample in run["seconds"]]
        shares = [f"{quantile(samples, share):.2f}" for share in (0.5, 0.95, 0.99)]
        versions = sum(run["versions"] for run in runs) / len(runs)
        rows.append(
            (f"{visibility}, {interval}", *shares, f"{max(samples):.2f}", f"{versions:.0f}")
        )
    header = ("visibility, interval", "p50 s", "p95 s", "p99 s", "most s", "versions per run")
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("latency", "Measure how long until a row is seen.", repeats=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="per run (%(default)s)")
    parser.add_argument("--warmup", type=float, default=20.0, help="seconds (%(default)s)")
    parser.add_argument("--every", type=float, default=0.1, help="seconds a row (%(default)s)")
    parser.add_argument(
        "--cases",
        default="checkpoint:5s,checkpoint:1s,batch:5s",
        help="visibility and interval of checkpoints (%(default)s)",
    )
    given = parsed(parser, arguments, SMOKE)
    facts = machine()
    found = run_all(given)
    print(f"\n{show(found)}")
    publish(parser, given, found, facts)


if __name__ == "__main__":
    main()

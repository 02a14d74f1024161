"""The race: the same queries on the same files, on Cutwater, plain Spark, Flink, and the limits.

Six queries in the manner of NexMark over generated Parquet files. Every measurement is a process of
its own, engines take turns, and every table is compared with what DuckDB computes from the same
files: an engine that writes other rows fails the benchmark.

- throughput (default): seconds, processor time, memory and checkpoints of each run;
- `--latency`: from a file's arrival until its rows are visible, at a fixed rate;
- `--recovery`: from the restart after SIGKILL to the first new visible row.

    python -m benchmarks.peers [--queries q1,q3] [--engines cutwater,spark] [--rows N] [--repeats N]
"""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Final

from benchmarks.measuring import machine, options_of, parsed, publish, workspace
from benchmarks.peers import latency, recovery, report, throughput
from benchmarks.peers.bars import bar_svg
from benchmarks.peers.queries import QUERIES

SMOKE: Final = {
    "rows": 40_000,
    "files": 4,
    "repeats": 1,
    "seconds": 4.0,
    "warmup": 4.0,
    "recovery_files": 3,
}


def parser() -> ArgumentParser:
    made = options_of("peers", "Race the same queries on several engines.", repeats=5)
    made.add_argument("--queries", default=",".join(QUERIES), help="which (%(default)s)")
    made.add_argument("--engines", default=",".join(throughput.ENGINES), help="which (%(default)s)")
    made.add_argument("--rows", type=int, default=9_200_000, help="bids (%(default)s)")
    made.add_argument("--files", type=int, default=40, help="per stream (%(default)s)")
    made.add_argument(
        "--interval", type=float, default=5.0, help="seconds between checkpoints (%(default)s)"
    )
    made.add_argument(
        "--sink", choices=("files", "delta"), default="files", help="of Cutwater (%(default)s)"
    )
    made.add_argument("--mini-batch", choices=("on", "off"), default="on", help="of Flink's tables")
    made.add_argument("--latency", action="store_true", help="measure it instead of throughput")
    made.add_argument("--recovery", action="store_true", help="measure it instead of throughput")
    made.add_argument(
        "--live-interval",
        type=float,
        default=1.0,
        help="seconds between checkpoints with --latency and --recovery (%(default)s)",
    )
    made.add_argument("--seconds", type=float, default=60.0, help="of --latency (%(default)s)")
    made.add_argument("--warmup", type=float, default=20.0, help="of --latency (%(default)s)")
    made.add_argument("--every", type=float, default=0.1, help="seconds per file (%(default)s)")
    made.add_argument("--file-rows", type=int, default=1000, help="per file (%(default)s)")
    made.add_argument(
        "--recovery-files", type=int, default=20, help="before the kill (%(default)s)"
    )
    return made


def cores_of(master: str) -> int:
    """Return the cores of Spark's master, which all other engines get too.

    Raises:
        ValueError: If it does not say how many.
    """
    found = re.fullmatch(r"local\[([1-9]\d*)\]", master)
    if found is None:
        raise ValueError(f"--master must be local[N], with a number, not {master}")
    return int(found[1])


def race(options: ArgumentParser, given: Namespace) -> list[str]:
    """Measure throughput; return what was wrong."""
    facts = machine()
    with workspace(given) as directory:
        found = throughput.run_all(given, directory)
    print(f"\n{report.show(found.found)}")
    for engine, reason in found.left_out.items():
        print(f"left out: {engine}: {reason}")
    measured = {"runs": found.found, "left_out": found.left_out, "wrong": found.wrong}
    publish(options, given, measured, facts)
    if any(runs for engines in found.found.values() for runs in engines.values()):
        picture = given.output.with_suffix(".svg")
        picture.write_text(bar_svg(report.chart(found.found, given.rows)))
        print(picture)
    return found.wrong


def live(options: ArgumentParser, given: Namespace) -> list[str]:
    """Measure latency or recovery into a result file of its own; nothing is wrong if it ends."""
    module, name = (latency, "latency") if given.latency else (recovery, "recovery")
    facts = machine()
    with workspace(given) as directory:
        found, left_out = module.run_all(given, directory)
    print(f"\n{module.show(found)}")
    given.output = given.output.with_stem(f"{given.output.stem}-{name}")
    publish(options, given, {"runs": found, "left_out": left_out}, facts)
    return []


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser()
    given = parsed(options, arguments, SMOKE)
    try:
        given.cores = cores_of(given.master)
        throughput.check_names(given)
    except ValueError as problem:
        options.error(str(problem))
    wrong = live(options, given) if given.latency or given.recovery else race(options, given)
    if wrong:
        sys.exit("\n".join(["", *wrong]))


if __name__ == "__main__":
    main()

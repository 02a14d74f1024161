"""What a checkpoint costs behind a backlog: barriers that wait for the data, and that overtake it.

The diamond of `examples/diamond.py`: one branch waits for every row, so whatever its source is
ahead piles up in front of it. The bound of the channels keeps that backlog steady: the source fills
it and then waits. Checkpoints are asked for one after the other while it is full. Then the pipeline
is killed, restored from the last of them and run to its end, and its table is compared with what it
must hold, row by row: a fast checkpoint that loses a row is worth nothing.

    python -m benchmarks.unaligned [--backlogs 4,12,40] [--checkpoints N] [--repeats N]
"""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from benchmarks.measuring import (
    DEADLINE_S,
    interleaved,
    machine,
    options_of,
    parsed,
    publish,
    rounded,
    session,
    spread,
    table,
    wait_for,
    workspace,
)
from benchmarks.plot import Chart, Line, svg
from deltalake import DeltaTable
from examples import diamond
from pyspark.sql import SparkSession

from cutwater import CheckpointConfig, Pipeline, RestartConfig
from cutwater.run import PipelineRun, RunOptions
from cutwater.sources.numbered import START_TIME
from cutwater.spark.session.session import ship_by_value

EVENT_ROWS: Final = 5000
"""The rows of one Event: the diamond's source makes batches of so many when it lies behind."""

ENDLESS: Final = 10**12
NEVER: Final = "24h"
MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "waits (10 min)": {"alignment_timeout": "10m"},
    "waits 1 s": {"alignment_timeout": "1s"},
    "forced": {"unaligned": "forced"},
}
SMOKE: Final = {"backlogs": "2,4", "checkpoints": 1, "repeats": 1}


@dataclass(frozen=True, slots=True)
class Case:
    """One mode behind one backlog, which is counted in Events."""

    mode: str
    backlog: int


@dataclass(frozen=True, slots=True)
class Taken:
    """One checkpoint, and what lay in front of the slow branch when it was asked for."""

    duration_ms: int
    unaligned: bool
    in_flight_bytes: int
    backlog_events: int
    backlog_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: its checkpoints, and the rows that were wrong after it was restored."""

    case: Case
    taken: tuple[Taken, ...]
    rows: int
    wrong_rows: int


# -- one run


def measure(
    spark: SparkSession, case: Case, given: Namespace, directory: Path, checkpoints: int
) -> Outcome:
    """Take checkpoints behind a steady backlog, kill, restore, run to the end and compare."""
    config = CheckpointConfig(
        interval=NEVER,
        timeout="30m",
        channel_messages=case.backlog,
        channel_bytes="16GB",
        max_inflight_bytes="4GB",
        **MODES[case.mode],  # type: ignore[arg-type]
    )
    shown = directory / "table"
    run = pipeline(given, ENDLESS, given.slow_us, shown).start(spark, options(directory, config))
    try:
        taken = tuple(checkpoint(run, case.backlog) for _ in range(checkpoints))
    finally:
        run.kill()
        run.wait(DEADLINE_S)
    # All that was read before the kill, and some more, so that the restored source has work too.
    read = next(step.rows for step in run.status().steps if step.name == "numbers")
    total = read + 2 * EVENT_ROWS
    quick = options(directory, CheckpointConfig(interval="2s"))
    if pipeline(given, total, 0, shown).start(spark, quick).wait(DEADLINE_S) is None:
        raise RuntimeError(f"{case} did not end after it was restored")
    found = DeltaTable(shown).to_pyarrow_table(columns=["value", "twice", "thrice", "price", "at"])
    return Outcome(case, taken, total, wrong_rows(found, total, given.rate))


def pipeline(given: Namespace, total: int, slow_us: int, shown: Path) -> Pipeline:
    return diamond.create(
        total=str(total), rate=str(given.rate), slow_us=str(slow_us), table=str(shown)
    )


def options(directory: Path, config: CheckpointConfig) -> RunOptions:
    return RunOptions(
        store=directory / "store",
        scratch=directory / "scratch",
        checkpoint=config,
        restart=RestartConfig(strategy="none"),
    )


def checkpoint(run: PipelineRun, backlog: int) -> Taken:
    """Wait until the backlog is full, and take a checkpoint."""

    def full() -> tuple[int, int] | None:
        status = run.status()
        behind = next((channel for channel in status.channels if channel.reader == "slow"), None)
        if behind is None or behind.messages < backlog:
            return None
        return behind.messages, behind.size_bytes

    events, size_bytes = wait_for(full, f"{backlog} Events lay before the slow branch", run)
    report = run.checkpoint(DEADLINE_S)
    if report.status != "COMPLETED":
        raise RuntimeError(f"checkpoint {report.id} failed: {report.failure}")
    return Taken(report.duration_ms, report.unaligned, report.in_flight_bytes, events, size_bytes)


def wrong_rows(found: pa.Table, total: int, rate: float) -> int:
    """Count the rows that are missing, too many or not as they must be."""
    values = np.sort(found["value"].to_numpy())
    if len(values) != total or not np.array_equal(values, np.arange(total)):
        counts = np.bincount(values[(values >= 0) & (values < total)], minlength=total)
        strangers = len(values) - int(counts.sum())
        return int(np.abs(counts - 1).sum()) + strangers
    numbers = found["value"].to_numpy()
    start = (datetime.fromisoformat(START_TIME) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
    micros = start + np.floor(numbers * 1e6 / rate).astype(np.int64)
    right = (
        (found["twice"].to_numpy() == numbers * 2)
        & (found["thrice"].to_numpy() == numbers * 3)
        & (found["price"].to_numpy() == numbers // 100 % 7 + 1)
        & (found["at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() == micros)
    )
    return int((~right).sum())


# -- all of them


def run_all(given: Namespace, cases: Sequence[Case]) -> list[Outcome]:
    outcomes = []
    ship_by_value([diamond])
    with session(given.master) as spark, workspace(given) as directory:
        # Once without counting, so that no mode pays for Spark's first minutes.
        measure(spark, Case("waits 1 s", 2), given, directory / "warm", 1)
        for repeat, case in interleaved(cases, given.repeats):
            name = f"r{repeat}-{cases.index(case)}"
            outcome = measure(spark, case, given, directory / name, given.checkpoints)
            outcomes.append(outcome)
            seconds = ", ".join(f"{one.duration_ms / 1000:.1f}" for one in outcome.taken)
            print(f"{case.mode}, {case.backlog} Events: {seconds} s", flush=True)
    return outcomes


def gathered(outcomes: Sequence[Outcome], case: Case) -> list[Taken]:
    """Return the checkpoints of all rounds of one case."""
    return [one for outcome in outcomes if outcome.case == case for one in outcome.taken]


def show(outcomes: Sequence[Outcome], cases: Sequence[Case]) -> str:
    rows = []
    for case in cases:
        taken = gathered(outcomes, case)
        in_flight = spread([one.in_flight_bytes / 1024 for one in taken])
        wrong = sum(outcome.wrong_rows for outcome in outcomes if outcome.case == case)
        rows.append(
            (
                case.mode,
                case.backlog,
                spread([one.duration_ms / 1000 for one in taken]),
                f"{sum(one.unaligned for one in taken)}/{len(taken)}",
                rounded(in_flight.middle),
                f"{sum(outcome.rows for outcome in outcomes if outcome.case == case):,}",
                "exact" if not wrong else f"{wrong:,} WRONG",
            )
        )
    header = ("", "backlog", "checkpoint s", "unaligned", "in flight KB", "rows", "table")
    return table(header, rows)


def chart(outcomes: Sequence[Outcome], cases: Sequence[Case]) -> Chart:
    lines = []
    for mode in MODES:
        mine = sorted((case for case in cases if case.mode == mode), key=lambda one: one.backlog)
        times = [
            spread([one.duration_ms / 1000 for one in gathered(outcomes, case)]) for case in mine
        ]
        points = tuple(
            (float(case.backlog), time.middle) for case, time in zip(mine, times, strict=True)
        )
        lines.append(Line(mode, points, tuple(time.quartiles for time in times)))
    return Chart(
        "How long a checkpoint takes behind a slow branch",
        f"backlog of the slow branch, Events of {EVENT_ROWS:,} rows",
        "seconds (median, quartiles)",
        tuple(lines),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of("unaligned", "Measure checkpoints behind a backlog.", repeats=3)
    parser.add_argument("--backlogs", default="4,12,40", help="Events (%(default)s)")
    parser.add_argument("--checkpoints", type=int, default=3, help="per run (%(default)s)")
    parser.add_argument("--slow-us", type=int, default=100, help="per row (%(default)s)")
    parser.add_argument("--rate", type=float, default=20_000.0, help="rows/s (%(default)s)")
    given = parsed(parser, arguments, SMOKE)
    facts = machine()
    cases = [Case(mode, int(size)) for size in given.backlogs.split(",") for mode in MODES]
    outcomes = run_all(given, cases)
    print(f"\n{show(outcomes, cases)}")
    publish(parser, given, [asdict(outcome) for outcome in outcomes], facts)
    given.output.with_suffix(".svg").write_text(svg(chart(outcomes, cases)))
    if any(outcome.wrong_rows for outcome in outcomes):
        sys.exit("a restored table is not what it must be")


if __name__ == "__main__":
    main()

"""How `benchmarks.chain` shows what it has measured: rates and hops side by side, and a profile.

The profile is of two kinds: where a batch of the second query waits and works, as Spark tells it,
and what the processors do meanwhile, as the kernel counts it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measuring import Spread, rounded, spread, table

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each chain what its runs have measured."""


def rates(found: Found, rows: int) -> dict[str, Spread]:
    """Return rows per second from the start of the queries to the last row counted."""
    return {mode: spread([rows / run["seconds"] for run in runs]) for mode, runs in found.items()}


def running_rates(found: Found) -> dict[str, Spread]:
    """Return rows per second of the second query behind the warm-up."""
    return {
        mode: spread([run["warm_rows"] / max(run["warm_seconds"], 1e-9) for run in runs])
        for mode, runs in found.items()
    }


def pooled(runs: Sequence[Mapping[str, Any]], key: str) -> Spread:
    """Return one spread over the samples of all runs."""
    return spread([sample for run in runs for sample in run[key]])


def show(found: Found, rows: int) -> str:
    whole, running = rates(found, rows), running_rates(found)
    lines = []
    for mode, runs in found.items():
        ratios = (whole[mode].middle / whole[other].middle for other in ("spark", "tuned"))
        lines.append(
            (
                mode,
                whole[mode],
                *(f"{ratio:.2f}" for ratio in ratios),
                running[mode],
                pooled(runs, "hop_ms"),
                pooled(runs, "file_to_count_ms"),
            )
        )
    header = ("", "rows/s", "/spark", "/tuned", "rows/s running", "hop ms", "file to count ms")
    phases = list(dict.fromkeys(key for runs in found.values() for key in runs[0]["second_ms"]))
    parts = [(phase, *_middles(found, "second_ms", phase)) for phase in phases]
    batches = [
        rounded(spread([run["second_batches"] for run in runs]).middle) for runs in found.values()
    ]
    parts.append(("batches", *batches))
    works = [(work, *_middles(found, "work_ms", work)) for work in found["cutwater"][0]["work_ms"]]
    inside = spread([one["write_ms"] for one in found["cutwater"]])
    append = spread([one["append_ms"] for one in found["cutwater"]])
    return "\n".join(
        [
            table(header, lines),
            "\nThe second query, milliseconds of a batch (mean):\n",
            table(("", *found), parts),
            "\nBehind the warm-up, processor milliseconds a batch of both queries:\n",
            table(("", *found), works),
            f"\ncutwater, in the first step: write {inside} ms a batch, append {append} ms "
            "(waiting for room included)",
        ]
    )


def _middles(found: Found, table: str, key: str) -> Iterator[str]:
    """Yield the median of one line of a table, for each chain."""
    for runs in found.values():
        yield rounded(spread([float(run[table].get(key, 0)) for run in runs]).middle)

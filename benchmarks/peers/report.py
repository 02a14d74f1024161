"""The measurements of the race as tables for people, and as a chart.

Ratios are throughput: how many times as fast Cutwater was as the other engine, by the medians of
all rounds.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.measuring import Spread, rounded, spread, table
from benchmarks.peers.bars import BarChart, Group
from benchmarks.peers.queries import QUERIES

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""The measurements of one query, by engine."""


def seconds_of(runs: Runs) -> dict[str, Spread]:
    """Return the times of each engine that has at least one."""
    return {
        engine: spread([float(run["seconds"]) for run in measured])
        for engine, measured in runs.items()
        if measured
    }


def ratios_of(runs: Runs, first: str = "cutwater") -> dict[str, float]:
    """Return how many times as fast the first engine was as each of the others."""
    times = seconds_of(runs)
    if first not in times:
        return {}
    own = times[first].middle
    return {engine: other.middle / own for engine, other in times.items() if engine != first}


def show(found: Mapping[str, Runs]) -> str:
    """Return all tables: times, ratios, and what each run used."""
    engines = list(dict.fromkeys(engine for runs in found.values() for engine in runs))
    parts = ["Seconds from the first batch to the end", _times(found, engines)]
    others = [engine for engine in engines if engine != "cutwater"]
    if "cutwater" in engines and others:
        parts += ["", "Cutwater's throughput relative to", _ratios(found, others)]
    parts += ["", "What it took", _uses(found)]
    return "\n".join(parts)


def _times(found: Mapping[str, Runs], engines: Sequence[str]) -> str:
    rows = []
    for query, runs in found.items():
        times = seconds_of(runs)
        rows.append((_title(query), *(str(times.get(engine, "–")) for engine in engines)))
    return table(("", *engines), rows)


def _ratios(found: Mapping[str, Runs], others: Sequence[str]) -> str:
    rows = []
    for query, runs in found.items():
        ratios = ratios_of(runs)
        cells = [f"{ratios[other]:.2f}x" if other in ratios else "–" for other in others]
        rows.append((_title(query), *cells))
    return table(("", *others), rows)


def _uses(found: Mapping[str, Runs]) -> str:
    rows = [
        (f"{query} {engine}", *_use(measured))
        for query, runs in found.items()
        for engine, measured in runs.items()
        if measured
    ]
    header = ("", "CPU s", "MB, most", "rows", "checkpoints", "ms each", "KB each")
    return table(header, rows)


def _use(measured: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the cells of one engine and query: medians over its runs."""
    checkpoints = [one for run in measured for one in run["checkpoints"]]
    rows = sum(int(one["rows"]) for one in measured[0]["tables"].values())
    cells = (
        rounded(median(float(run["cpu_seconds"]) for run in measured)),
        rounded(median(float(run["memory_mb_max"]) for run in measured)),
        f"{rows:,}",
    )
    if not checkpoints:
        return (*cells, "–", "–", "–")
    return (
        *cells,
        rounded(len(checkpoints) / len(measured)),
        rounded(median(one["ms"] for one in checkpoints)),
        rounded(median(one["bytes"] for one in checkpoints) / 1024),
    )


def _title(query: str) -> str:
    return f"{query} {QUERIES[query].title}"


def chart(found: Mapping[str, Runs], rows: int) -> BarChart:
    """Return the chart of the race: for each query a bar per engine, in seconds."""
    groups = []
    for query, runs in found.items():
        times = seconds_of(runs)
        bars = {engine: (one.middle, *one.quartiles) for engine, one in times.items()}
        groups.append(Group(query, bars))
    return BarChart(
        title=f"Seconds for {rows:,} bids, or as many auctions and people as go with them",
        y_label="seconds, median and quartiles",
        groups=tuple(groups),
    )

"""The race itself: every query on every engine over the same files, in turn, results compared.

A round runs all engines of a query, beginning with another one each time; each measurement is a
process of its own. A result that differs from DuckDB's is a failure of the whole benchmark, after
all others were measured.
"""

import json
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import interleaved, rounded
from benchmarks.peers import data, duck, flink_setup, results
from benchmarks.peers.flink_setup import Flink, Unavailable
from benchmarks.peers.queries import QUERIES
from benchmarks.peers.watching import use_between, watch

ENGINES: Final = (
    "cutwater",
    "spark",
    "tuned",
    "flink-hashmap",
    "flink-rocksdb",
    "batch",
    "duckdb",
)
FURTHER_ENGINES: Final = ("flink-unaligned",)
"""Measured when they are named."""

Found = dict[str, dict[str, list[dict[str, Any]]]]
"""The measurements, by query and engine."""


@dataclass(slots=True)
class Race:
    """What was measured, and what was not as it should be.

    Attributes:
        found: All measurements.
        wrong: Results that differ from DuckDB's, and runs that failed.
        left_out: Engines that could not be installed, with the reason.
    """

    found: Found = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def available(engines: Sequence[str]) -> tuple[list[str], Flink | None, dict[str, str]]:
    """Return the engines that can run here, Flink if it is one of them, and why others cannot."""
    if not any(engine.startswith("flink") for engine in engines):
        return list(engines), None, {}
    try:
        return list(engines), flink_setup.prepare(), {}
    except Unavailable as missing:
        print(f"Without Flink: {missing}", flush=True)
        others = [engine for engine in engines if not engine.startswith("flink")]
        flinks = [engine for engine in engines if engine.startswith("flink")]
        return others, None, dict.fromkeys(flinks, str(missing))


def command(engine: str, flink: Flink | None) -> tuple[list[str], Mapping[str, str]]:
    """Return how a process of an engine is started, and its environment."""
    if engine.startswith("flink") and flink is not None:
        return [str(flink.python), "-m", "benchmarks.peers.flink_job"], flink.environment
    return [sys.executable, "-m", "benchmarks.peers.worker"], os.environ


def measure(
    query: str, engine: str, given: Namespace, places: Mapping[str, Path], flink: Flink | None
) -> tuple[dict[str, Any], dict[str, results.Digest]]:
    """Run a query on an engine once; return what was measured, and what it wrote."""
    work, target = places["work"], places["work"] / "tables"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    task, result = work / "task.json", work / "result.json"
    task.write_text(
        json.dumps(
            {
                "query": query,
                "engine": engine,
                "kind": engine.removeprefix("flink-"),
                "streams": str(places["streams"]),
                "target": str(target),
                "work": str(work),
                "cores": given.cores,
                "interval_s": given.interval,
                "mini_batch": given.mini_batch == "on",
                "sink": given.sink,
            }
        )
    )
    words, environment = command(engine, flink)
    timing, samples = watch([*words, str(task), str(result)], environment, result)
    use = use_between(samples, timing["began_s"], timing["ended_s"])
    written = results.digests(query, target)
    measured = {
        "seconds": timing["ended_s"] - timing["began_s"],
        "cpu_seconds": timing.get("cpu_s", use.cpu_s),
        "memory_mb_max": use.memory_mb_max,
        "checkpoints": timing["checkpoints"],
        "batches": timing.get("batches", 0),
        "phases_ms": timing.get("phases_ms", {}),
        "tables": results.form(written),
    }
    return measured, written


def expected_of(
    queries: Sequence[str], given: Namespace, directory: Path, streams: Path
) -> dict[str, dict[str, results.Digest]]:
    """Return what every engine must write, by query."""
    found = {}
    for query in queries:
        target = directory / "expected" / query
        duck.write_tables(query, streams, target, given.cores)
        found[query] = results.digests(query, target)
        shutil.rmtree(target)
    return found


def run_all(given: Namespace, directory: Path) -> Race:
    """Measure everything that was asked for."""
    engines, flink, left_out = available(given.engines.split(","))
    queries, race = given.queries.split(","), Race(left_out=left_out)
    places = {"streams": directory / "streams", "work": directory / "work"}
    data.generate(places["streams"], given.rows, given.files)
    expected = expected_of(queries, given, directory, places["streams"])
    cases = [(query, engine) for query in queries for engine in engines]
    race.found = {query: {engine: [] for engine in engines} for query in queries}
    for query, engine in rounds(cases, queries, given.repeats):
        try:
            measured, written = measure(query, engine, given, places, flink)
        except RuntimeError as failure:
            race.wrong.append(f"{query} on {engine} failed: {failure}")
            print(race.wrong[-1], flush=True)
            continue
        race.found[query][engine].append(measured)
        race.wrong += results.differences(query, engine, written, expected[query])
        print(
            f"{query} {engine}: {rounded(measured['seconds'])} s, "
            f"{rounded(measured['cpu_seconds'])} CPU s, {rounded(measured['memory_mb_max'])} MB"
            + ("" if written == expected[query] else ", WRONG RESULT"),
            flush=True,
        )
    shutil.rmtree(places["work"], ignore_errors=True)
    return race


def rounds(
    cases: Sequence[tuple[str, str]], queries: Sequence[str], repeats: int
) -> list[tuple[str, str]]:
    """Order the cases: query by query within a round, each round with another engine first."""
    found: list[tuple[int, tuple[str, str]]] = []
    for query in queries:
        found += interleaved([case for case in cases if case[0] == query], repeats)
    return [case for _, case in sorted(found, key=lambda turn: turn[0])]


def unknown(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names that are none of the known ones."""
    return [name for name in names if name not in known]


def check_names(given: Namespace) -> None:
    """Refuse unknown names of queries and engines.

    Raises:
        ValueError: Naming them.
    """
    queries = unknown(given.queries.split(","), list(QUERIES))
    engines = unknown(given.engines.split(","), [*ENGINES, *FURTHER_ENGINES])
    if queries:
        raise ValueError(f"unknown queries: {', '.join(queries)}")
    if engines:
        raise ValueError(f"unknown engines: {', '.join(engines)}")

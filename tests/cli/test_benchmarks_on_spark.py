"""Every benchmark on Spark runs to its end with tiny sizes; nothing here looks at a time."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.peers.queries import QUERIES
from tests.cli.command import SPARK_DEADLINE_S, command, run_to_end
from tests.unit.test_benchmarks import ON_SPARK

RACE_DEADLINE_S = 10 * SPARK_DEADLINE_S
"""For some thirty processes, one after the other."""


def samples(measured: object) -> Iterator[float]:
    """All numbers in a result, however deep."""
    match measured:
        case bool() | str() | None:
            return
        case int() | float():
            yield measured
        case list():
            for entry in measured:
                yield from samples(entry)
        case dict():
            yield from samples(list(measured.values()))
        case _:
            raise AssertionError(measured)


@pytest.mark.long
@pytest.mark.parametrize("name", ON_SPARK)
def test_a_benchmark_on_spark_runs_and_writes_its_samples(name: str, tmp_path: Path) -> None:
    result = tmp_path / "results" / f"{name}.json"
    words = ["--smoke", "--work", str(tmp_path), "--output", str(result)]

    run = run_to_end(command(*words, program=f"benchmarks.{name}"), deadline_s=SPARK_DEADLINE_S)

    assert run.returncode == 0, run.stdout + run.stderr
    written = json.loads(result.read_text())
    assert written["command"] == f"python -m benchmarks.{name} --smoke"
    found = list(samples(written["measured"]))
    assert any(value > 0 for value in found)
    assert all(math.isfinite(value) for value in found)


@pytest.mark.long
def test_the_race_runs_and_all_engines_but_flink_write_the_same_rows(tmp_path: Path) -> None:
    result = tmp_path / "results" / "peers.json"
    words = ["--smoke", "--rows", "4000", "--engines", "cutwater,spark,tuned,batch,duckdb"]
    words += ["--work", str(tmp_path), "--output", str(result)]

    run = run_to_end(command(*words, program="benchmarks.peers"), deadline_s=RACE_DEADLINE_S)

    assert run.returncode == 0, run.stdout + run.stderr
    measured = json.loads(result.read_text())["measured"]
    assert (measured["wrong"], measured["left_out"]) == ([], {})
    tables = {
        query: {json.dumps(runs[0]["tables"], sort_keys=True) for runs in engines.values()}
        for query, engines in measured["runs"].items()
    }
    assert {query: len(different) for query, different in tables.items()} == dict.fromkeys(
        QUERIES, 1
    )
    assert result.with_suffix(".svg").exists()

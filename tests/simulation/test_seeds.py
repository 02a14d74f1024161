"""Seeds of the simulator: the protocol against every kind of fault.

`python -m cutwater.testing.simulation --seeds 5000` (or `make sim`) runs many more.
"""

import os

import pytest

from cutwater.testing.simulation.__main__ import MODES
from cutwater.testing.simulation.campaign import Choice, Summary, run_campaign
from cutwater.testing.simulation.pipelines import SHAPES
from cutwater.testing.simulation.trace import describe
from cutwater.testing.simulation.world import World

SEEDS = range(300)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return run_campaign(Choice(), SEEDS, jobs=os.cpu_count() or 1)


def test_no_checker_objects_in_any_seed(summary: Summary) -> None:
    wrong = [(outcome.verdict, Choice().command(outcome.seed)) for outcome in summary.wrong]

    assert wrong == []
    assert summary.seeds == len(SEEDS)


def test_every_fault_is_delivered_and_every_outcome_is_reached(summary: Summary) -> None:
    assert summary.never() == []


def test_every_pipeline_is_drawn(summary: Summary) -> None:
    drawn = {scenario.split(",")[0] for scenario in summary.scenarios}

    assert drawn == set(SHAPES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_calm_run_completes_checkpoints_in_every_pipeline_and_mode(shape: str, mode: str) -> None:
    world = World(1, shape=shape, mode=mode, calm=True)

    counts = world.run(chaos_ms=3_000).counts

    assert counts["commit points"] > 0
    assert [name for name in counts if name.startswith("fault: ")] == []


def test_the_same_seed_gives_the_same_run_line_by_line() -> None:
    assert _trace(11) == _trace(11)


def test_another_seed_gives_another_run() -> None:
    assert _trace(11) != _trace(12)


def _trace(seed: int) -> list[str]:
    lines: list[str] = []
    world = World(
        seed, tracer=lambda *what: lines.append(" ".join((*map(str, what[:3]), describe(what[3]))))
    )
    world.run(chaos_ms=3_000)
    return lines

"""Running many seeds, on all cores, and adding up what really happened.

A campaign is clean when no checker objected and when everything that was to be injected or reached
was: faults of every kind, aligned and unaligned checkpoints, recoveries. What never happened proves
nothing, so it is reported and counts as a failure of the campaign.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from cutwater.errors import CutwaterError
from cutwater.testing.simulation.faults import KINDS
from cutwater.testing.simulation.fork import forkable, run_fork
from cutwater.testing.simulation.history import Wrong
from cutwater.testing.simulation.sabotage.registry import load
from cutwater.testing.simulation.world import Tracer, World

REACHED: Final = (
    "checkpoints aligned",
    "checkpoints unaligned",
    "savepoints",
    "commit points",
    "recovery points before their turn",
    "commits repeated",
    "batches shown",
    "batches shown too late",
    "tables taken back",
    "recoveries",
    "recoveries in flight",
    "recovery refused",
    "rewinds",
    "forks",
    "halted: fenced",
    "halted: outcome_unknown",
    "zombies that woke up",
    "overlapping attempts",
    "full channel",
    "objects reused",
    "objects deleted",
    "staged batches deleted",
    "queries ended too early",
    "late writes: log",
    "halted: target_behind",
    "targets found behind",
    "commit blocked",
    "ack accepted",
    "ack duplicate",
    "ack late",
    "ack stale_generation",
    "ack unknown",
)


FORK_EVERY: Final = 5
"""One seed in this many is also forked at its end."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to fix instead of drawing it from the seed."""

    shape: str | None = None
    mode: str | None = None
    sabotage: str | None = None

    def world(self, seed: int, tracer: Tracer | None = None) -> World:
        faults = load()[self.sabotage].faults if self.sabotage else ()
        return World(seed, shape=self.shape, mode=self.mode, faults=faults, tracer=tracer)

    def command(self, seed: int) -> str:
        """Return the command that replays one seed with its trace."""
        parts = ["python -m cutwater.testing.simulation", f"--seed {seed}"]
        for name in ("shape", "mode", "sabotage"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"--{name} {value}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    scenario: str
    counts: Counter[str]
    verdict: str | None = None


@dataclass(slots=True)
class Summary:
    """What became of all seeds so far."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    scenarios: Counter[str] = field(default_factory=Counter)
    wrong: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.counts += outcome.counts
        self.scenarios[outcome.scenario] += 1
        if outcome.verdict is not None:
            self.wrong.append(outcome)

    def never(self) -> list[str]:
        """Return what should have happened in a large campaign and never did."""
        wanted = (*REACHED, *(f"fault: {kind}" for kind in KINDS))
        return [name for name in wanted if not self.counts[name]]


def run_seed(choice: Choice, seed: int) -> Outcome:
    """Run one seed and judge it; every exception is a verdict."""
    broken = load()[choice.sabotage].applied() if choice.sabotage else nullcontext()
    with broken:
        world = choice.world(seed)
        scenario = f"{world.shape.name}, {world.scenario.mode}"
        try:
            world.run()
            if seed % FORK_EVERY == 0 and not world.lost:
                _fork(world)
        except (Wrong, CutwaterError) as error:
            return Outcome(seed, scenario, world.history.counts, str(error))
        except Exception as error:  # noqa: BLE001 - any surprise in the world is a verdict too
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            where = f"{type(error).__name__}: {error} ({place})"
            return Outcome(seed, scenario, world.history.counts, where)
        return Outcome(seed, scenario, world.history.counts)


def _fork(world: World) -> None:
    """Fork the finished run from one of its cuts, if it has any, and add up the counts."""
    cuts = forkable(world)
    child = run_fork(world, world.rng.choice(cuts)) if cuts else None
    if child is not None:
        world.history.counts += child.history.counts
        world.history.counts["forks"] += 1


def outcomes(choice: Choice, seeds: range, jobs: int) -> Iterator[Outcome]:
    """Run seeds, in order if on one core, and yield each outcome when it is ready."""
    if jobs == 1:
        yield from map(partial(run_seed, choice), seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        chunk = max(1, min(10, len(seeds) // (4 * jobs)))
        yield from pool.map(partial(run_seed, choice), seeds, chunksize=chunk)


def run_campaign(
    choice: Choice,
    seeds: range,
    *,
    jobs: int,
    progress: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Run all seeds and add up; `progress` is called after each."""
    summary = Summary()
    for outcome in outcomes(choice, seeds, jobs):
        summary.add(outcome)
        progress(summary)
    return summary


def first_wrong(sabotage: str, seeds: Iterable[int]) -> Outcome | None:
    """Return the first seed that notices a mutation; None if none does."""
    broken = load()[sabotage]
    choice = Choice(shape=broken.shape, mode=broken.mode, sabotage=sabotage)
    for seed in seeds:
        outcome = run_seed(choice, seed)
        if outcome.verdict is not None:
            return outcome
    return None

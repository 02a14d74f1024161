"""`python -m cutwater.testing.simulation`: run seeds, replay one, sabotage, or show the demo.

Exit codes: 0 all seeds pass and everything was reached; 1 a checker failed; 2 wrong usage; 3 no
checker failed, but something that must happen never did.
"""

import argparse
import os
import sys
import time

from cutwater.testing.simulation import demo
from cutwater.testing.simulation.campaign import FORK_EVERY, Choice, Summary, run_campaign
from cutwater.testing.simulation.faults import KINDS
from cutwater.testing.simulation.fork import forkable, run_fork
from cutwater.testing.simulation.history import Wrong
from cutwater.testing.simulation.pipelines import SHAPES
from cutwater.testing.simulation.sabotage.registry import load
from cutwater.testing.simulation.trace import LEGEND, describe

MODES = ("aligned", "timeout", "forced", "concurrent")
ENOUGH = 300


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cutwater.testing.simulation",
        description="Run the checkpoint protocol against faults in a world driven by a seed.",
    )
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds (default 300)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="replay one seed, one line per event")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="run only this pipeline")
    parser.add_argument("--mode", choices=MODES, help="checkpoint only this way")
    parser.add_argument("--sabotage", choices=sorted(load()), help="break this rule on purpose")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cores to use")
    parser.add_argument("--demo", action="store_true", help="show one barrier crossing a diamond")
    parser.add_argument("--list-sabotages", action="store_true", help="say what can be broken")
    return parser


class _Progress:
    """A line that moves on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, started: float) -> None:
        self.total = total
        self.started = started
        self.tty = sys.stdout.isatty()
        self.every = max(1, total // 200 if self.tty else total // 10)

    def __call__(self, summary: Summary) -> None:
        if summary.seeds % self.every and summary.seeds != self.total:
            return
        seconds = time.monotonic() - self.started
        text = (
            f"  {summary.seeds}/{self.total} seeds, {len(summary.wrong)} wrong, "
            f"{summary.counts['commit points']} commits, {summary.counts['recoveries']} "
            f"recoveries, {seconds:.0f} s"
        )
        end = "\n" if not self.tty or summary.seeds == self.total else "\r"
        print(text.ljust(78), end=end, flush=True)


def _report(summary: Summary, choice: Choice, total: int) -> int:
    counts = summary.counts
    print("\nWhat happened")
    for name in sorted(counter for counter in counts if not counter.startswith("fault: ")):
        print(f"  {counts[name]:9,}  {name}")
    print("\nFaults delivered")
    for kind in KINDS:
        print(f"  {counts[f'fault: {kind}']:9,}  {kind}")
    print(f"\nScenarios: {len(summary.scenarios)} different pipelines and modes")
    for outcome in summary.wrong[:10]:
        print(f"\nWRONG  seed {outcome.seed} ({outcome.scenario}): {outcome.verdict}")
        print(f"       replay: {choice.command(outcome.seed)}")
    if summary.wrong:
        print(f"\n{len(summary.wrong)} of {total} seeds went wrong.")
        return 1
    never = summary.never() if total >= ENOUGH and choice == Choice() else []
    if never:
        print(f"\nNo checker objected, but this never happened: {', '.join(never)}.")
        return 3
    print(f"\nAll {total} seeds pass.")
    return 0


def _replay(seed: int, choice: Choice) -> int:
    print(LEGEND.strip("\n"))

    def tracer(now_ms: int, process: str, actor: str, event: object) -> None:
        if actor != "task" and not describe(event).startswith("> it is"):
            print(f"{now_ms:6}  {process:7}  {actor.removesuffix(' !'):12}  {describe(event)}")

    world = choice.world(seed, tracer)
    print(f"\nseed {seed}: {world.shape.name}, {world.scenario.mode}; {world.options}\n")
    try:
        world.run()
        if seed % FORK_EVERY == 0 and not world.lost:
            print("(this seed is also forked at its end; the fork's own events are not shown)")
            cuts = forkable(world)
            if cuts:
                run_fork(world, world.rng.choice(cuts))
    except Wrong as verdict:
        print(f"\nWRONG: {verdict}")
        return 1
    print("\nNo checker objects.")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    chosen = _parser().parse_args(arguments)
    choice = Choice(chosen.shape, chosen.mode, chosen.sabotage)
    if chosen.demo:
        demo.show(print)
        return 0
    if chosen.list_sabotages:
        for sabotage in load().values():
            print(f"{sabotage.name:36} {sabotage.rule:10} {sabotage.does}")
        return 0
    if chosen.seed is not None:
        if choice.sabotage is None:
            return _replay(chosen.seed, choice)
        with load()[choice.sabotage].applied():
            return _replay(chosen.seed, choice)
    if chosen.seeds < 1 or chosen.jobs < 1:
        print("--seeds and --jobs must be at least 1.", file=sys.stderr)
        return 2
    print(f"Simulating {chosen.seeds} seeds from {chosen.start} on {chosen.jobs} cores.")
    seeds = range(chosen.start, chosen.start + chosen.seeds)
    progress = _Progress(chosen.seeds, time.monotonic())
    summary = run_campaign(choice, seeds, jobs=chosen.jobs, progress=progress)
    return _report(summary, choice, chosen.seeds)


if __name__ == "__main__":
    sys.exit(main())

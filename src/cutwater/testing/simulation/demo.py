"""The demonstration: one barrier crosses a diamond, aligned and then overtaking a slow branch.

It runs the real protocol in the simulated world, shows the lines of one checkpoint, and compares
the table with the whole computation at the end.
"""

import re
from collections.abc import Callable

from cutwater.testing.simulation.trace import describe
from cutwater.testing.simulation.world import World

DIAMOND = """\
           +--> a (as it comes) --+
    s -----+                      +--> j joins both --> j_table
           +--> b (slow)        --+
"""

SKIPPED = ("> it is ", "! pin", "! drop the pins", "! keep ", "grew to", "task")

Line = tuple[int, str, str]


def _collect(mode: str, seed: int) -> tuple[World, list[Line]]:
    lines: list[Line] = []

    def tracer(now_ms: int, _: str, actor: str, event: object) -> None:
        text = describe(event)
        if actor != "task" and not any(part in text for part in SKIPPED):
            lines.append((now_ms, actor.removesuffix(" !"), text))

    world = World(seed, shape="diamond", mode=mode, calm=True, tracer=tracer)
    world.slow = True
    world.run(chaos_ms=3_000)
    return world, lines


def _concerning(lines: list[Line], checkpoint_id: int) -> list[Line]:
    """Return the lines of one checkpoint, and the batches in between."""
    number = rf"\b{checkpoint_id}\b"
    told = rf"(barrier|snapshot|attempt|checkpoint|decision of) {number}"
    about = [index for index, (_, _, text) in enumerate(lines) if re.search(told, text)]
    inside = lines[about[0] : about[-1] + 1]
    wanted = rf"{told}|append Event|commits|record the commit"
    return [line for line in inside if re.search(wanted, line[2])]


def _crossing(lines: list[Line], kind: str) -> int | None:
    for _, _, text in lines:
        found = re.search(r"decide checkpoint (\d+) \((.*), ", text)
        if found and int(found[1]) > 3 and kind in found[2]:
            return int(found[1])
    return None


def _find(mode: str, kind: str) -> tuple[World, list[Line], int]:
    """Return the first run that shows a checkpoint of this kind."""
    for seed in range(100):
        world, lines = _collect(mode, seed)
        checkpoint_id = _crossing(lines, kind)
        if checkpoint_id is not None:
            return world, lines, checkpoint_id
    message = f"no run shows a checkpoint of kind {kind!r}"
    raise LookupError(message)


def _show(say: Callable[[str], None], title: str, mode: str, kind: str) -> None:
    world, lines, checkpoint_id = _find(mode, kind)
    say(f"\n{title}\n")
    say("    time  actor        what")
    for now_ms, actor, text in _concerning(lines, checkpoint_id):
        say(f"  {now_ms:6}  {actor:12} {text}")
    counts = world.history.counts
    table = next(iter(world.tables.values()))
    say(
        f"\n  Verdict: {len(table.rows)} rows in {table.sink} equal the whole computation; "
        f"{counts['checkpoints aligned']} aligned and {counts['checkpoints unaligned']} unaligned "
        f"checkpoints, {counts['commit points']} commits."
    )


def show(say: Callable[[str], None]) -> None:
    """Show both crossings, line by line, through `say`."""
    say("A barrier crosses a diamond. `>` is what a step is told, `!` what the protocol orders;")
    say("`a@7` is the place behind the seventh Event of the channel that step a writes.\n")
    say(DIAMOND)
    aligned = "1. Aligned: j holds the fast branch at the barrier until the slow one has caught up."
    _show(say, aligned, "aligned", "aligned")
    overtaking = "2. Unaligned: patience ends, the barrier overtakes, what it passes is recorded."
    _show(say, overtaking, "timeout", "in flight")

"""Finds the first seed that detects each sabotage of the simulator, and writes them to a file.

The tests try that seed first, which takes a second instead of minutes. A seed that no longer
detects its sabotage only makes the test search. Run this after a change of the simulator.
"""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cutwater.testing.simulation.campaign import first_wrong
from cutwater.testing.simulation.sabotage.registry import load

FILE = Path(__file__).parents[1] / "tests" / "simulation" / "detecting_seeds.json"
SEEDS = range(500)


def main() -> None:
    names = list(load())
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = pool.map(first_wrong, names, [SEEDS] * len(names))
        found = {
            name: outcome.seed for name, outcome in zip(names, outcomes, strict=True) if outcome
        }
    FILE.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

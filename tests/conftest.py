"""What holds for all tests: their order, their Java, and that none of them is timed.

What takes longest begins first, so that two workers end together.
"""

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

_ROOT: Final = Path(__file__).parent
_SLOWEST_FIRST: Final = ("crash", "property", "simulation", "cli", "spark", "dashboard", "serve")

# A Java that lives for seconds spends half of them on compiling what it runs once.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# The machine may be busy with something else.
settings.register_profile("cutwater", deadline=None)
settings.load_profile("cutwater")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by directory alone: within one, tests stay as they were found."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    directory = item.path.relative_to(_ROOT).parts[0]
    is_slow = directory in _SLOWEST_FIRST
    return _SLOWEST_FIRST.index(directory) if is_slow else len(_SLOWEST_FIRST)

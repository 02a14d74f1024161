"""What holds for all tests: their order, their Java, and that none of them is timed.

What takes longest begins first, so that two workers end together; and while one of them keeps both
cores busy with Spark, the other does something that needs one.
"""

import importlib.metadata
import os
import signal
import time
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

_ROOT: Final = Path(__file__).parent
_SPARK: Final = ("crash", "cli", "spark", "dashboard", "server")
"""Slowest first."""
_PYTHON: Final = ("property", "simulation")

# pyspark turns times into those of this machine's zone, and tests compare them with UTC's.
os.environ["TZ"] = "UTC"
time.tzset()

# A shell starts what it puts in the background with SIGINT ignored, nohup with SIGHUP ignored, and
# children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A Java that lives for seconds spends half of them on compiling what it runs once. Told not to, it
# reserves less room for code than one that lives for all tests of a worker needs.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
)

# The machine may be busy with something else; and what is tried is the same every time, unless
# more is requested (tests/property/conftest.py).
settings.register_profile(
    "cutwater",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("cutwater")


def pytest_configure(config: pytest.Config) -> None:
    """Forgive old versions of pyspark that they leave sockets open when rows are collected."""
    if importlib.metadata.version("pyspark") < "4.2":
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take files of both kinds in turn, then the rest; within one, tests stay as they were."""
    files = list(dict.fromkeys(item.path for item in items))
    turns: dict[Path, int] = {}
    for kind in (_SPARK, _PYTHON):
        found = [file for place in kind for file in files if _directory(file) == place]
        turns |= {file: turn for turn, file in enumerate(found)}
    items.sort(key=lambda item: turns.get(item.path, len(files)))


def _directory(file: Path) -> str:
    return file.relative_to(_ROOT).parts[0]

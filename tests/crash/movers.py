"""The process that moves pipelines and dies when told, as tests see it (`tests.crash.mover`)."""

import json
import subprocess
import sys
from pathlib import Path

from tests.crash.drivers import ROOT


class Mover:
    """Moves pipelines in processes that die when they are told."""

    def __init__(self) -> None:
        """Start it; what comes waits until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.mover"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def move(self, store: Path, *task: str) -> tuple[int, list[str]]:
        """Do a task; return the exit code and the writes that it came to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(store), *task]) + "\n")
        self._process.stdin.flush()
        code, writes = json.loads(self._process.stdout.readline())
        return code, writes

    def close(self) -> None:
        """End it."""
        self._process.communicate()

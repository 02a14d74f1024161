"""The client of `tests.crash.operation_process`: it sends tasks and reads their results."""

import json
import subprocess
import sys
from pathlib import Path

from tests.crash.drivers import ROOT


class OperationClient:
    """Runs rewinds and forks in processes that kill themselves at a given write."""

    def __init__(self) -> None:
        """Start the process; tasks wait until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.operation_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, store: Path, *task: str) -> tuple[int, list[str]]:
        """Run a task; return its exit code and the writes it reached."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(store), *task]) + "\n")
        self._process.stdin.flush()
        code, writes = json.loads(self._process.stdout.readline())
        return code, writes

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

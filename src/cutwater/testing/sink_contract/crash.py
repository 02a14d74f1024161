"""A process that runs a sink's commit and kills itself midway, for `SinkContract`.

    python -m cutwater.testing.sink_contract.crash MODULE_FILE MODULE CLASS DIRECTORY

It loads the class that describes the sink, and for every line of its input forks a child that
commits or restores. The child counts the lines of the sink's own code that it executes, and ends
with SIGKILL before the requested line: nothing is flushed, closed or unwound.
"""

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from cutwater.ids import BatchId, Generation
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import SinkContext
from cutwater.testing.sink_contract.harness import PIPELINE, SINK, permit
from cutwater.testing.sink_contract.tests import SinkContract

_PARTS: Final = 6


class Deaths:
    """Lets a sink act in processes that die."""

    def __init__(self, contract: type[SinkContract], directory: Path) -> None:
        """Start the process that is forked."""
        named = (inspect.getfile(contract), contract.__module__, contract.__qualname__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cutwater.testing.sink_contract.crash", *named, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            text=True,
        )
        self._lines = {"commit": 0, "restore": 0}

    @property
    def parts(self) -> tuple[str, ...]:
        """Moments in the course of an action, from its first line to its last."""
        return tuple(f"{part}/{_PARTS}" for part in range(_PARTS + 1))

    def commit(self, slot: int, staged: Sequence[Committable], part: str | None) -> None:
        """Commit, and die after a part of it; with None, do not die."""
        packed = [_packed(committable) for committable in staged]
        self._act({"action": "commit", "slot": slot, "staged": packed}, part)

    def restore(self, slot: int, version: str, part: str | None) -> None:
        """Restore, and die after a part of it; with None, do not die."""
        self._act({"action": "restore", "slot": slot, "version": version}, part)

    def _act(self, task: dict[str, Any], part: str | None) -> None:
        lines = self._lines[task["action"]]
        task["dies_at"] = None
        if part is not None:
            number, _, of = part.partition("/")
            task["dies_at"] = max(1, lines * int(number) // int(of))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(task)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the process that lets the sink act has ended; see its errors")
        code, counted, error = json.loads(answer)
        if error or (part is None and code != 0):
            raise AssertionError(f"the sink failed in another process: {error or code}")
        if part is None:
            self._lines[task["action"]] = counted
        elif code not in {-signal.SIGKILL, 0}:
            raise AssertionError(f"the process ended with {code}")

    def __enter__(self) -> "Deaths":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()


def _packed(committable: Committable) -> dict[str, Any]:
    blobs = [[blob.name, blob.size_bytes, blob.sha256] for blob in committable.blobs]
    return {
        "generation": committable.generation,
        "batch": committable.batch,
        "rows": committable.rows,
        "blobs": blobs,
    }


def _unpacked(values: dict[str, Any]) -> Committable:
    blobs = tuple(BlobRef(*blob) for blob in values["blobs"])
    place = Generation(values["generation"]), BatchId(values["batch"])
    return Committable(SINK, *place, values["rows"], blobs)


# -- in the other process


class _Countdown:
    """Counts the executed lines of some modules, and ends this process before one of them."""

    def __init__(self, modules: frozenset[str], dies_at: int | None) -> None:
        self.lines = 0
        self._modules = modules
        self._dies_at = dies_at

    def trace(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401
        """Count a line; fits `sys.settrace`."""
        name = str(frame.f_globals.get("__name__", ""))
        if not any(name == module or name.startswith(f"{module}.") for module in self._modules):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def _perform(contract: SinkContract, directory: Path, task: dict[str, Any]) -> int:
    target = contract.target(directory)
    opened = target.open(SinkContext(None, PIPELINE, SINK))
    own = {type(target).__module__, type(opened).__module__, "cutwater.sinks"}
    countdown = _Countdown(frozenset(own), task["dies_at"])
    sys.settrace(countdown.trace)
    try:
        if task["action"] == "commit":
            staged = [_unpacked(packed) for packed in task["staged"]]
            opened.commit(permit(task["slot"]), staged)
        else:
            opened.restore(permit(task["slot"]), task["version"])
    finally:
        sys.settrace(None)
    return countdown.lines


def _in_a_fork(contract: SinkContract, directory: Path, task: dict[str, Any]) -> list[object]:
    """Run a task in a child; return its exit code, the lines it counted, and its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result: list[object] = [_perform(contract, directory, task), ""]
        except BaseException:  # noqa: BLE001 - the tests must see every error
            result = [0, traceback.format_exc()]
        os.write(writing, json.dumps(result).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told_file:
        text = told_file.read()
    _, status = os.waitpid(child, 0)
    return [os.waitstatus_to_exitcode(status), *(json.loads(text) if text else [0, ""])]


def _loaded(file: str, module: str, name: str) -> SinkContract:
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    found: object = loaded
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    contract = found()
    assert isinstance(contract, SinkContract)
    return contract


def main(file: str, module: str, name: str, directory: str) -> None:
    """Act for every line of the input, until it ends."""
    contract = _loaded(file, module, name)
    for line in sys.stdin:
        answer = _in_a_fork(contract, Path(directory), json.loads(line))
        os.write(1, f"{json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs a document: its files are written, its commands are given, in the order of the page.

A block of Python that begins with `# name.py` is a file. A block `sh` is a script, and every
command of it must succeed. A block `text` is something to look at and is not run.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import ROOT, environment

# In a list a block is indented.
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.py)\n")


@dataclass(frozen=True)
class Said:
    """What one block of commands said."""

    commands: str
    output: str


def blocks(name: str) -> list[tuple[str, str]]:
    """Return the blocks of a page below `docs`: the kind and the text of each."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return [(kind, textwrap.dedent(block)) for _, kind, block in _BLOCK.findall(text)]


def write_file(kind: str, text: str, directory: Path) -> Path | None:
    """Write a block that is a file; None if it is something else."""
    named = _FILE.match(text) if kind == "python" else None
    if named is None:
        return None
    (directory / named[1]).write_text(text, encoding="utf-8")
    return directory / named[1]


def run_document(name: str, directory: Path, deadline_s: float) -> list[Said]:
    """Follow a page below `docs` word by word; return what its commands said."""
    # `cutwater` and `python` are those of the tests, on two cores as all of them.
    tools = directory.parent / "tools"
    tools.mkdir()
    for tool, arguments in {"cutwater": "-m cutwater.cli.main", "python": ""}.items():
        script = tools / tool
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        script.chmod(0o755)
    given = environment(CUTWATER_MASTER="local[2]")
    env = {**given, "PATH": f"{tools}:{given['PATH']}"}
    said, sessions = [], []
    try:
        for kind, text in blocks(name):
            if write_file(kind, text, directory) is None and kind == "sh":
                process = _start(text, directory, env)
                sessions.append(process.pid)
                said.append(Said(text, _output(process, text, deadline_s)))
    except BaseException:
        # What an earlier block has left in the background would run for ever.
        for session in sessions:
            with suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)
        raise
    return said


def _start(text: str, directory: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    # In a session of its own, so that what a page starts in the background can be ended.
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _output(process: "subprocess.Popen[str]", text: str, deadline_s: float) -> str:
    try:
        output, errors = process.communicate(timeout=deadline_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, f"{text}\n{output}\n{errors}"
    return output

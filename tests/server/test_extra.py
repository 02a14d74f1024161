"""Without the extra that serving needs: it is named, and nothing else fails."""

import sys
from pathlib import Path

import pytest
from tests.cli.command import run_to_end

HIDDEN = """
import importlib.abc, importlib.util, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(name)

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {hidden!r} else real(name, *more)
sys.meta_path.insert(0, Hidden())
"""


def python(program: str, *hidden: str) -> tuple[int, str, str]:
    words = [sys.executable, "-c", HIDDEN.format(hidden=set(hidden)) + program]
    ended = run_to_end(words)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("hidden", ["fastapi", "uvicorn", "prometheus_client"])
def test_the_extra_is_named_where_it_is_missing(hidden: str) -> None:
    program = """
from cutwater.errors import ConfigError
try:
    import cutwater.server
except ConfigError as error:
    print(error)
"""
    code, said, complaints = python(program, hidden)

    assert (code, complaints) == (0, "")
    assert f"{hidden} not found: pip install 'cutwater[serve]'" in said


def test_a_command_that_serves_names_it_too(tmp_path: Path) -> None:
    program = f"""
sys.argv = ["cutwater", "ui", {str(tmp_path)!r}]
from cutwater.cli.main import main
main()
"""
    code, _, complaints = python(program, "fastapi", "uvicorn")

    assert code == 2
    assert "ui: fastapi, uvicorn not found: pip install 'cutwater[serve]'" in complaints
    assert "Traceback" not in complaints

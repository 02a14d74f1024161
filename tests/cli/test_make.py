"""What people type in a fresh clone: `make` says what there is, `make dashboard` shows one."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable
from scripts import cli_reference
from tests.cli.command import ROOT, SPARK_DEADLINE_S, cutwater, environment, run_to_end
from tests.servers.jars import JarsUnavailable, broker_jars


def made(*arguments: str) -> str:
    return subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def words_of_the_dashboard() -> list[str]:
    """Return the command that `make dashboard` gives once everything is installed."""
    printed = made("-n", "dashboard").replace("\\\n", " ")
    return shlex.split(printed[printed.rindex("cutwater run ") :])


def test_every_target_that_people_call_is_listed() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None

    listed = re.findall(r"^  make (\w+) +\S", made(), re.MULTILINE)

    assert set(listed) == set(phony[1].split()) - {"stale"}


def test_the_dashboard_runs_a_pipeline_that_can_be_planned() -> None:
    _, _, target, *options = words_of_the_dashboard()
    given = list(zip(options[::2], options[1::2], strict=True))
    known = {
        opt for each in dict(cli_reference.commands())["cutwater run"].params for opt in each.opts
    }
    parameters = [word for name, value in given if name == "--param" for word in (name, value)]

    planned = cutwater("plan", target, "--no-spark", *parameters)

    assert planned.returncode == 0, planned.stderr
    assert "auction_sellers" in planned.stdout
    assert {name for name, _ in given} <= known


@pytest.mark.parametrize(
    ("scripts", "called", "said"),
    [
        ({"chromium": "", "id": "echo 0"}, "", ""),
        ({"google-chrome": "", "id": "echo 0"}, "", ""),
        ({"id": "echo 1000"}, "", ""),
        ({"id": "echo 0"}, "--no-install-recommends chromium", "Installing Chromium"),
        ({"id": "echo 0", "apt-get": "exit 100"}, "update -qq", "Chromium could not be installed"),
    ],
    ids=["there", "another name", "not root", "missing", "cannot be had"],
)
def test_a_missing_browser_is_installed_by_root_and_never_fails_make(
    tmp_path: Path, scripts: dict[str, str], called: str, said: str
) -> None:
    log, make = tmp_path / "called", shutil.which("make")
    log.touch()
    assert make is not None
    for name, script in {"apt-get": "", **scripts}.items():
        (tmp_path / name).write_text(
            f"#!/bin/sh\n[ ${{0##*/}} = id ] || echo $* >> {log}\n{script}\n"
        )
        (tmp_path / name).chmod(0o755)

    done = subprocess.run(
        [make, "-C", str(ROOT), "--no-print-directory", "browser"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0
    assert said in done.stdout + done.stderr
    assert log.read_text().strip().endswith(called)
    assert bool(log.read_text()) == bool(called)


@dataclass
class Run:
    """`make dashboard`, and what it has said so far."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def line_with(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if text in line:
                return line.strip()
        raise AssertionError(f"it never said {text!r}: {''.join(self.said)}")

    def interrupt(self) -> str:
        """Send SIGINT to the whole process group, as Ctrl-C does; return the output after that."""
        os.killpg(self.process.pid, signal.SIGINT)
        rest, _ = self.process.communicate(timeout=SPARK_DEADLINE_S)
        return rest


@contextmanager
def dashboard(clone: Path) -> Iterator[Run]:
    process = subprocess.Popen(
        # The environment is the one that runs this test, whatever time its stamp has.
        ["make", "-o", ".venv/.installed", "-f", str(ROOT / "Makefile"), "dashboard"],
        cwd=clone,
        env=environment(CUTWATER_SERVE="auto"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    overdue = threading.Timer(SPARK_DEADLINE_S, os.killpg, (process.pid, signal.SIGKILL))
    overdue.start()
    try:
        yield Run(process)
    finally:
        overdue.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize(
    ("total", "rate"),
    [("30000", "1500"), pytest.param("6000", "600", marks=pytest.mark.matrix)],
)
def test_the_demo_is_killed_goes_on_and_finds_every_row_once(
    tmp_path: Path, total: str, rate: str
) -> None:
    words = ["--total", total, "--rate", rate, "--out", str(tmp_path / "out")]
    demo = [sys.executable, str(ROOT / "examples" / "demo.py"), *words]
    run = run_to_end(demo, cwd=tmp_path, deadline_s=SPARK_DEADLINE_S)

    assert run.returncode == 0, run.stdout + run.stderr
    killed, _, recovered = run.stdout.partition("2. Killed with SIGKILL.")
    assert "auctions finished" not in killed
    assert "auctions finished: all input is processed." in recovered
    verdicts = re.findall(r"(high_bids|channels|auction_sellers)[^\n]*\b0\W+0\W+same", recovered)
    assert verdicts == ["high_bids", "channels", "auction_sellers"]
    assert "Verdict: every row exactly once." in recovered


def test_the_kafka_demo_is_killed_during_a_commit_and_finds_every_row_once(tmp_path: Path) -> None:
    try:
        broker_jars()
    except JarsUnavailable as unavailable:
        pytest.skip(str(unavailable))
    words = ["--total", "4000", "--rate", "400", "--out", str(tmp_path / "out")]
    demo = [sys.executable, str(ROOT / "examples" / "kafka_demo.py"), *words]
    run = run_to_end(demo, cwd=tmp_path, deadline_s=SPARK_DEADLINE_S)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "Killed with SIGKILL while a transaction was open" in run.stdout
    assert run.stdout.count("4,000 rows, 0 missing, 0 too many: same") == 2


@pytest.mark.long
def test_the_dashboard_answers_stops_with_a_checkpoint_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".venv").symlink_to(sys.prefix)

    with dashboard(tmp_path) as first:
        url = first.line_with("dashboard and API at http://127.0.0.1:4").rpartition(" ")[2]
        page = httpx.get(url)
        first.line_with("completed in")
        with dashboard(tmp_path) as second:
            refused, _ = second.process.communicate(timeout=SPARK_DEADLINE_S)
        ended = first.interrupt()
    with dashboard(tmp_path) as again:
        recovered = again.line_with("from checkpoint ")
        ended_again = again.interrupt()

    assert page.status_code == 200
    assert "<title>Cutwater</title>" in page.text
    assert second.process.returncode == 2  # make's own, for any command that fails
    assert "Error 3" in refused
    assert "pipeline auctions is run by process" in refused
    last = re.search(r"the next run resumes from checkpoint (\d+)\.", ended)
    assert last is not None, ended
    assert f"from checkpoint {last[1]}" in recovered
    assert "auctions stopped." in ended_again
    assert DeltaTable(tmp_path / "out" / "dashboard" / "tables" / "high_bids").count() > 0

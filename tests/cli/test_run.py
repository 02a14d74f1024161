"""`cutwater run`: what it hands on, what it shows, how it stops, and its exit codes."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import (
    DEADLINE_S,
    PIPELINE,
    ROOT,
    command,
    cutwater,
    environment,
    run_to_end,
)

SCRIPTED_RUN = "tests.cli.scripted_run"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.py"
    path.write_text(f"{PIPELINE}\norders = build('orders')\n")
    return str(path)


@pytest.fixture
def start(file: str) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(story: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command("run", file, *arguments, program=SCRIPTED_RUN),
            cwd=ROOT,
            env=environment(CUTWATER_SCRIPTED_RUN=story),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def objects_in(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON, among lines for people."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def line_with(process: "subprocess.Popen[str]", text: str) -> str:
    """Read until a line says this; the process's end ends the wait too."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}: {process.communicate()}")


def test_a_finished_run_is_told_line_by_line(start: Start) -> None:
    process = start("finish")

    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 0, complaints
    lines = [line[9:] for line in said.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert lines == [
        "starting Spark on local[*]",
        "warning: it is a scripted run.",
        "starting orders; its checkpoints are in .cutwater/store",
        "checkpoint 1 completed in 250 ms (2.0 KB uploaded)",
        "orders is RUNNING",
        "checkpoint 2 failed: step totals declined it",
        "checkpoint 3 completed in 1 min 1 s "
        "(0 B uploaded; unaligned, 512 B in flight; sinks wait for the next)",
        "orders finished: all input is processed. 2 checkpoints, 0 restarts; "
        "the next run resumes from checkpoint 3.",
    ]
    assert '{"type": "session stopped"}' in said


def test_a_run_is_told_to_a_program_by_flinks_names(start: Start) -> None:
    process = start("restart", "--output", "json")

    said, complaints = process.communicate(timeout=DEADLINE_S)

    told = objects(said)
    assert process.returncode == 0, complaints
    assert [entry["type"] for entry in told] == [
        "message",
        "message",
        "message",
        "options",
        "checkpoint",
        "state",
        "checkpoint",
        "restart",
        "checkpoint",
        "result",
        "session stopped",
    ]
    done = told[4]
    del done["time"]
    assert done == {
        "type": "checkpoint",
        "id": 1,
        "status": "COMPLETED",
        "checkpoint_type": "CHECKPOINT",
        "unaligned_checkpoint": False,
        "end_to_end_duration": 250,
        "checkpointed_size": 2048,
        "state_size": 4096,
        "persisted_data": 0,
        "commit_point": True,
        "failure_message": None,
    }
    assert told[7]["detail"] == "worker lost"
    assert told[9]["last_checkpoint"] == 3


def test_options_reach_the_run_as_they_were_given(start: Start, tmp_path: Path) -> None:
    flags = ["--store", (tmp_path / "a b").as_uri(), "--scratch", str(tmp_path / "fast")]
    flags += ["--interval", "5s", "--alignment-timeout", "2s", "--unaligned", "--available-now"]
    flags += ["--allow-new", "--allow-dropped", "--swap", "orders", "--swap", "refunds"]
    more = ["--name", "trial", "--takeover", "--output", "json"]
    process = start("finish", *flags, "--from", "before", "--yes", *more)

    said, _ = process.communicate(timeout=DEADLINE_S)

    options = next(entry for entry in objects(said) if entry["type"] == "options")
    checkpoint = options.pop("checkpoint")
    restart = options.pop("restart")
    assert options == {
        "type": "options",
        "store": str(tmp_path / "a b"),
        "scratch": str(tmp_path / "fast"),
        "available_now": True,
        "start_from": "before",
        "takeover": True,
        "name": "trial",
        "may_rewind": True,
        "allow_new": True,
        "allow_dropped": True,
        "moved": [],
        "swap": ["orders", "refunds"],
    }
    assert (checkpoint["interval"], checkpoint["alignment_timeout"]) == ("5s", "2s")
    assert checkpoint["unaligned"] is True
    assert restart["strategy"] == "fixed"


def test_a_start_in_changed_code_tells_what_became_of_the_steps(start: Start) -> None:
    said, _ = start("changed").communicate(timeout=DEADLINE_S)

    told = [line.partition(" ")[2] for line in said.splitlines()]
    at = told.index("step totals resumes where it was")
    assert told[at + 1 : at + 3] == [
        "  no longer reads source orders",
        "step big is dropped, with its state",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_with_a_final_checkpoint(number: signal.Signals, start: Start) -> None:
    process = start("forever")
    line_with(process, "is RUNNING")

    process.send_signal(number)
    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 0, complaints
    expected = f"{number.name}: taking a final checkpoint; Ctrl-C again to stop at once"
    assert expected in said
    assert "orders stopped. 2 checkpoints" in said


def test_a_second_interrupt_stops_at_once(start: Start) -> None:
    process = start("stubborn")
    line_with(process, "is RUNNING")
    process.send_signal(signal.SIGINT)
    line_with(process, "taking a final checkpoint")

    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 130, complaints
    assert "stopped at once, without a checkpoint" in said
    assert '{"type": "killed"}' in said
    assert "session stopped" not in said


def test_a_second_term_signal_lets_the_final_checkpoint_go_on(start: Start) -> None:
    process = start("stubborn")
    line_with(process, "is RUNNING")
    process.send_signal(signal.SIGTERM)
    line_with(process, "taking a final checkpoint")

    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)


def test_a_run_stops_when_its_time_is_up(start: Start) -> None:
    process = start("forever", "--duration", "500ms")

    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 0, complaints
    assert "0.5 s have passed: taking a final checkpoint" in said


def test_a_run_raises_its_own_limit_of_open_files(file: str) -> None:
    words = shlex.join(command("run", file, "--duration", "500ms", program=SCRIPTED_RUN))

    run = run_to_end(
        ["sh", "-c", f"ulimit -Sn 256 && exec {words}"],
        env=environment(CUTWATER_SCRIPTED_RUN="limits"),
    )

    soft, hard = next(entry for entry in objects_in(run.stdout) if "files" in entry)["files"]
    assert soft == min(hard, 65_536)


@pytest.mark.parametrize(
    ("story", "code", "sentence"),
    [
        ("fail", 1, "[CW-602] step totals (orders.py:12) failed: division by zero"),
        ("fenced", 3, "[CW-401] Generation 1 of pipeline p is fenced out"),
        ("held", 3, "[CW-604] "),
    ],
)
def test_a_run_that_fails_says_why_and_how_badly(
    story: str, code: int, sentence: str, start: Start
) -> None:
    process = start(story)

    _, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == code
    assert complaints.startswith(sentence)
    assert len(complaints.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--interval", "5"), "--interval: '5' is not a duration"),
        (("--interval", "0s"), "--interval: '0s' must be above zero"),
        (("--alignment-timeout", "x"), "--alignment-timeout: 'x' is not a duration"),
        (("--duration", "soon"), "--duration: 'soon' is not a duration"),
        (("--conf", "spark.x"), "--conf: 'spark.x' is not of the form key=value"),
        (("--store", "ftp://host/x"), "--store: 'ftp://host/x' is no place for a store; it may be"),
        (("--store", "s3://"), "--store: 's3://' names no bucket"),
        (("--store", "s3://me:key@bucket"), "--store: s3://… has a user or a password in it"),
        (("--store", "memory://x"), "--store: memory://x would be lost when this command ends"),
        (("--forced", "--no-unaligned"), "--forced: contradicts --no-unaligned"),
        (
            ("--no-unaligned", "--alignment-timeout", "2s"),
            "--alignment-timeout: '2s' has no effect with unaligned=False, since no barrier",
        ),
    ],
)
def test_a_wrong_option_is_named_as_it_was_written(
    arguments: tuple[str, ...], sentence: str, file: str
) -> None:
    run = cutwater("run", file, *arguments)

    assert run.returncode == 2
    assert run.stderr.startswith(f"[CW-101] {sentence}")
    assert len(run.stderr.splitlines()) == 1


def test_a_plan_that_cannot_work_is_refused_before_spark_starts(tmp_path: Path) -> None:
    path = tmp_path / "orders.py"
    path.write_text(f"{PIPELINE}\norders = build('orders')\norders.view(lambda x: x, name='y')\n")

    run = cutwater("run", str(path))

    assert run.returncode == 2
    assert run.stderr.startswith("[CW-103] pipeline orders has ")
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        ((), {"SPARK_REMOTE": "sc://somewhere"}, "SPARK_REMOTE"),
        (("--conf", "spark.api.mode=connect"), {}, "spark.api.mode=connect"),
    ],
    ids=["variable", "conf"],
)
def test_spark_connect_is_refused_in_one_sentence(
    arguments: tuple[str, ...], variables: dict[str, str], named: str, file: str, tmp_path: Path
) -> None:
    run = cutwater("run", file, *arguments, cwd=tmp_path, env=environment(**variables))

    assert run.returncode == 1
    assert run.stderr.startswith(
        "[CW-601] A pipeline needs a classic session, not one of Spark Connect: "
        f"start it without {named}. Nothing was started; "
    )
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / ".cutwater").exists()


def test_the_help_lists_every_exit_code() -> None:
    run = cutwater("run", "--help")

    codes = re.findall(r"^ +(\d+)  +\w", run.stdout, re.MULTILINE)
    assert (run.returncode, codes) == (0, ["0", "1", "2", "3", "4", "129", "130", "143"])


def test_a_terminal_gets_a_view_that_is_redrawn(file: str) -> None:
    near, far = pty.openpty()
    process = subprocess.Popen(
        command("run", file, program=SCRIPTED_RUN),
        cwd=ROOT,
        env=environment(CUTWATER_SCRIPTED_RUN="finish", TERM="xterm", LINES="40"),
        stdout=far,
        stderr=far,
    )
    os.close(far)
    shown = read_all(near, process)

    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert process.returncode == 0, plain
    assert re.search(r"orders +RUNNING +generation 1", plain)
    assert re.search(r"totals +7 +12,345 +1,234 +1970-01-01 00:00:00", plain)
    assert re.search(r"totals +table +3 messages, 5.0 MB", plain)
    assert "checkpoint 1 completed in 250 ms" in plain
    assert "the next run resumes from checkpoint 3" in plain
    # Redrawn in place: the cursor goes up. Left as it was: the cursor is shown again.
    assert "\x1b[1A" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def read_all(terminal: int, process: "subprocess.Popen[bytes]") -> str:
    """Read a terminal until its process ends, with a deadline."""
    end_s = time.monotonic() + DEADLINE_S
    data = b""
    while time.monotonic() < end_s:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                data += os.read(terminal, 65_536)
            except OSError:  # Linux says so when the other side is closed.
                break
        elif process.poll() is not None:
            break
    process.wait(timeout=DEADLINE_S)
    os.close(terminal)
    return data.decode()

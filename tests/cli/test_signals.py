"""Signals: as process 1 of a container, while Spark starts, from a terminal that hangs up."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.command import (
    DEADLINE_S,
    PIPELINE,
    ROOT,
    command,
    environment,
    run_to_end,
)
from tests.cli.offline_store import OfflineStore
from tests.cli.test_run import SCRIPTED_RUN, line_with
from tests.waiting import wait_until

AS_PROCESS_1 = ["unshare", "--pid", "--fork", "--kill-child"]
"""Starts a command as the first process of a namespace, as a container does."""
Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.py"
    path.write_text(f"{PIPELINE}\norders = build('orders')\n")
    return str(path)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Process] = []

    def begin(*words: str, cwd: Path = ROOT, **variables: str) -> Process:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def process_1() -> list[str]:
    """How to start a command as process 1; skips the test where that is not possible."""
    try:
        tried = run_to_end([*AS_PROCESS_1, "true"])
    except FileNotFoundError:
        pytest.skip("there is no unshare(1) here")
    if tried.returncode != 0:
        pytest.skip(f"no namespace of processes here: {tried.stderr.strip()}")
    return AS_PROCESS_1


def child_of(process: Process) -> int:
    """The number, here, of the process that `unshare` has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: bool(children.read_text().split()), "unshare has started its child")
    return int(children.read_text().split()[0])


def processes(word: str) -> list[int]:
    """The numbers of all processes with a word on their command line or in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            texts = [(path / name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue
        if path.name.isdigit() and any(word.encode() in text for text in texts):
            found.append(int(path.name))
    return found


@pytest.mark.parametrize("story", ["starting", "forever"])
def test_process_1_of_a_container_ends_when_it_is_told_to(
    story: str, file: str, start: Start, process_1: list[str]
) -> None:
    words = command("run", file, program=SCRIPTED_RUN)
    process = start(*process_1, *words, CUTWATER_SCRIPTED_RUN=story)
    line_with(process, "starting Spark" if story == "starting" else "is RUNNING")

    os.kill(child_of(process), signal.SIGTERM)
    said, complaints = process.communicate(timeout=DEADLINE_S)

    expected = {"starting": 143, "forever": 0}[story]
    assert process.returncode == expected, (said, complaints)


def test_the_dashboard_of_a_store_ends_as_process_1_too(
    tmp_path: Path, start: Start, process_1: list[str]
) -> None:
    OfflineStore(tmp_path / "store")
    (tmp_path / "temporary").mkdir()
    words = command("ui", str(tmp_path / "store"), "--listen", "0")
    process = start(*process_1, *words, TMPDIR=str(tmp_path / "temporary"))
    line_with(process, "is shown at")

    os.kill(child_of(process), signal.SIGTERM)
    _, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_dashboard_of_a_store_leaves_no_token_behind(
    number: signal.Signals, tmp_path: Path, start: Start
) -> None:
    OfflineStore(tmp_path / "store")
    (tmp_path / "temporary").mkdir()
    words = command("ui", str(tmp_path / "store"), "--listen", "0")
    process = start(*words, TMPDIR=str(tmp_path / "temporary"))
    line_with(process, "is shown at")

    process.send_signal(number)
    _, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_hangup_stops_with_a_final_checkpoint(file: str, start: Start) -> None:
    process = start(*command("run", file, program=SCRIPTED_RUN), CUTWATER_SCRIPTED_RUN="forever")
    line_with(process, "is RUNNING")

    process.send_signal(signal.SIGHUP)
    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 0, complaints
    assert "SIGHUP: taking a final checkpoint" in said


def test_a_hangup_is_ignored_by_a_run_that_was_started_to_ignore_it(
    file: str, start: Start
) -> None:
    words = command("run", file, program=SCRIPTED_RUN)
    process = start("nohup", *words, CUTWATER_SCRIPTED_RUN="forever")
    line_with(process, "is RUNNING")

    process.send_signal(signal.SIGHUP)
    line_with(process, "checkpoint 3 completed")
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 0, complaints
    assert "SIGTERM: taking a final checkpoint" in said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_while_spark_starts_ends_at_once_and_leaves_no_jvm(
    number: signal.Signals, code: int, file: str, tmp_path: Path, start: Start
) -> None:
    mark = f"cutwater-test-{os.getpid()}-{code}"
    (tmp_path / "temporary").mkdir()
    process = start(
        *command("run", file),
        cwd=tmp_path,
        CUTWATER_TEST_MARK=mark,
        TMPDIR=str(tmp_path / "temporary"),
    )
    line_with(process, "starting Spark")
    # Its own, then whatever it starts: spark-submit and the JVMs below it.
    wait_until(lambda: len(processes(mark)) > 1, "Spark is starting")

    process.send_signal(number)
    _, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == code, complaints
    assert "the next run resumes from the last checkpoint" in complaints
    assert "Traceback" not in complaints
    wait_until(lambda: processes(mark) == [], "no process is left")
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert left in ([], [f"cutwater-{os.getuid()}"])
    assert not (tmp_path / ".cutwater").exists()


def test_a_stop_whose_last_checkpoint_failed_has_an_exit_code_of_its_own(
    file: str, start: Start
) -> None:
    process = start(*command("run", file, program=SCRIPTED_RUN), CUTWATER_SCRIPTED_RUN="unsaved")
    line_with(process, "is RUNNING")

    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (4, "")
    last = "orders stopped without a complete last checkpoint: the disk is full. 2 checkpoints, "
    assert last in said

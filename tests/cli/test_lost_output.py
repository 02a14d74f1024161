"""Output that has no reader or no room: a run goes on, other commands end quietly."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.cli.command import DEADLINE_S, PIPELINE, ROOT, command, environment, run_to_end
from tests.cli.test_run import SCRIPTED_RUN
from tests.waiting import wait_until

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.py"
    path.write_text(f"{PIPELINE}\norders = build('orders')\n")
    return str(path)


@contextmanager
def running(
    file: str, *more: str, stdout: int | IO[bytes], stderr: int | IO[bytes] = subprocess.PIPE
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a pipeline that only a signal ends; it makes a file when it looks at its run."""
    process = subprocess.Popen(
        command("run", file, *more, program=SCRIPTED_RUN),
        cwd=ROOT,
        env=environment(
            CUTWATER_SCRIPTED_RUN="chatty", CUTWATER_SCRIPTED_RUN_LOOKS=f"{file}.looks"
        ),
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def looks(file: str) -> int:
    """How often the run was looked at, each time with something to say."""
    path = Path(f"{file}.looks")
    return path.stat().st_size if path.exists() else 0


def complaints(process: "subprocess.Popen[bytes]") -> list[bytes]:
    """What a process that has ended said on stderr, but for what its looks have logged."""
    assert process.stderr is not None
    return [line for line in process.stderr if not line.startswith(b"look ")]


def stopped(process: "subprocess.Popen[bytes]", file: str) -> int:
    """See that a run goes on, stop it with a signal, and return its exit code."""
    seen = looks(file)
    wait_until(lambda: looks(file) > seen + 2 or process.poll() is not None, "it goes on")
    process.send_signal(signal.SIGTERM)
    return process.wait(DEADLINE_S)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_run_whose_reader_has_gone_goes_on_to_its_last_checkpoint(file: str, form: str) -> None:
    with running(file, "--output", form, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()

        code = stopped(process, file)

        assert (code, complaints(process)) == (0, [])
    assert b"stop" in Path(f"{file}.looks").read_bytes()


@needs_full
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_run_whose_output_finds_no_room_goes_on(file: str, form: str) -> None:
    with FULL.open("wb") as full, running(file, "--output", form, stdout=full) as process:
        code = stopped(process, file)

        assert (code, complaints(process)) == (0, [])


@needs_full
def test_a_run_whose_errors_find_no_room_goes_on(file: str) -> None:
    with (
        FULL.open("wb") as full,
        running(file, "--log-format", "json", stdout=full, stderr=full) as process,
    ):
        assert stopped(process, file) == 0


def test_a_run_whose_terminal_has_gone_goes_on(file: str) -> None:
    near, far = pty.openpty()
    with running(file, stdout=far, stderr=far) as process:
        os.close(far)
        os.read(near, 1)
        os.close(near)

        assert stopped(process, file) == 0


def test_a_run_without_any_output_goes_on(file: str) -> None:
    words = command("run", file, program=SCRIPTED_RUN)
    chatty = environment(
        CUTWATER_SCRIPTED_RUN="chatty", CUTWATER_SCRIPTED_RUN_LOOKS=f"{file}.looks"
    )
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words]
    process = subprocess.Popen(closed, cwd=ROOT, env=chatty)

    assert stopped(process, file) == 0


def test_text_that_the_output_cannot_encode_is_written_out(file: str) -> None:
    run = run_to_end(
        command("run", file, program=SCRIPTED_RUN),
        env=environment(CUTWATER_SCRIPTED_RUN="unicode", PYTHONIOENCODING="ascii"),
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert "restart 1, generation 2: gr\\xf6\\xdfe" in run.stdout


def test_a_command_whose_reader_has_gone_ends_quietly() -> None:
    words = command("--help")
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()

    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(DEADLINE_S)) == (b"", 0)
    process.stderr.close()


@needs_full
def test_a_command_whose_output_finds_no_room_says_so(tmp_path: Path) -> None:
    with FULL.open("wb") as full:
        run = subprocess.run(
            command("config", "show"),
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert run.returncode == 1
    assert run.stderr == (
        "The output is incomplete: No space left on device. Free space where stdout is "
        "written, and run the command again.\n"
    )

"""`cutwater run` on a real Spark, as people do: to its end, stopped by a signal, failing."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.command import ROOT, SPARK_DEADLINE_S, command, cutwater, environment
from tests.cli.test_run import line_with

UNION = str(ROOT / "examples" / "union.py") + ":create"
MASTER = ("--master", "local[2]")
TOTAL = 30_000
BROKEN = """
from pyspark.sql import functions as F
from cutwater import Pipeline, sinks

orders = Pipeline("orders")


@orders.source
def numbers(spark):
    files = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
    return files.json(spark.conf.get("spark.orders.incoming"))


def check(value):
    if value == 70:
        raise ValueError("seventy is too much")
    return value


@orders.step
def checked(numbers):
    return numbers.select(F.udf(check, "long")("value").alias("value"))


orders.sink("table", sinks.delta("table"), of=checked)
"""


def union(directory: Path, total: int, *more: str) -> tuple[str, ...]:
    flags = ("--store", str(directory / "store"), "--scratch", str(directory / "scratch"))
    params = ("--param", f"total={total}", "--param", f"table={directory / 'table'}")
    return ("run", UNION, *MASTER, *flags, *params, *more)


def rows(directory: Path) -> list[tuple[str, int]]:
    found = DeltaTable(directory / "table").to_pyarrow_table().to_pylist()
    return sorted((row["channel"], row["value"]) for row in found)


def expected(web: int, stores: int) -> list[tuple[str, int]]:
    return [
        *(("store", number) for number in range(stores)),
        *(("web", number) for number in range(web)),
    ]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator["subprocess.CompletedProcess[str]"]:
    """A run that got SIGTERM after a checkpoint with rows, long before its input ended."""
    flags = ("--param", "rate=300", "--interval", "1s")
    with begun(tmp_path, union(tmp_path, 20_000, *flags)) as process:
        wait_for_file(process, tmp_path / "table" / "_delta_log" / f"{0:020}.json")
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate(timeout=SPARK_DEADLINE_S)
        yield subprocess.CompletedProcess(process.args, process.returncode, said, complaints)


@contextmanager
def begun(directory: Path, words: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """Begin to run `cutwater` in a directory; in the end it does not run any more."""
    process = subprocess.Popen(
        command(*words),
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for_file(process: "subprocess.Popen[str]", file: Path) -> None:
    """Wait until a process has made a file, with a deadline."""
    wait_for(process, file.exists, str(file))


def wait_for(process: "subprocess.Popen[str]", made: Callable[[], bool], what: str) -> None:
    """Wait until a process has made something, with a deadline."""
    end_s = time.monotonic() + SPARK_DEADLINE_S
    while not made():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end_s, f"{what} was never made"
        time.sleep(0.1)


def test_all_that_is_there_is_processed_and_the_table_is_exact(tmp_path: Path) -> None:
    # At this rate it would take the better part of an hour.
    flags = ("--available-now", "--param", "rate=1")
    run = cutwater(*union(tmp_path, 3000, *flags), cwd=tmp_path, deadline_s=SPARK_DEADLINE_S)

    assert (run.returncode, run.stderr) == (0, "")
    assert "union finished: all input is processed." in run.stdout
    assert rows(tmp_path) == expected(3000, 1500)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "store", "table"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_signal_ends_with_a_checkpoint_and_the_next_run_goes_on_exactly(
    stopped: "subprocess.CompletedProcess[str]", tmp_path: Path
) -> None:
    before = rows(tmp_path)

    run = cutwater(
        *union(tmp_path, 20_000, "--available-now"), cwd=tmp_path, deadline_s=SPARK_DEADLINE_S
    )

    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert "SIGTERM: taking a final checkpoint; Ctrl-C again to stop at once" in stopped.stdout
    assert "union stopped. " in stopped.stdout
    web = sum(channel == "web" for channel, _ in before)
    assert 0 < web < 20_000
    assert before == expected(web, len(before) - web)
    assert (run.returncode, run.stderr) == (0, "")
    assert rows(tmp_path) == expected(20_000, 10_000)


@pytest.mark.long
def test_a_run_ends_when_its_time_is_up_and_at_once_when_interrupted_twice(tmp_path: Path) -> None:
    limited = cutwater(
        *diamond(tmp_path, 0, "--duration", "20s", "--interval", "1s"),
        cwd=tmp_path,
        deadline_s=SPARK_DEADLINE_S,
    )
    before = values(tmp_path)
    # Barriers that may not overtake wait for seconds behind the slow branch, also the last one.
    patient = diamond(tmp_path, 4000, "--no-unaligned", "--interval", "1h")
    with begun(tmp_path, patient) as hasty:
        wait_for(hasty, lambda: has_read(tmp_path / "scratch", 6), "a backlog")
        hasty.send_signal(signal.SIGINT)
        line_with(hasty, "SIGINT: taking a final checkpoint; Ctrl-C again to stop at once")
        hasty.send_signal(signal.SIGINT)
        said, complaints = hasty.communicate(timeout=SPARK_DEADLINE_S)
    between = values(tmp_path)
    rest = cutwater(
        *diamond(tmp_path, 0, "--available-now"), cwd=tmp_path, deadline_s=SPARK_DEADLINE_S
    )

    assert (limited.returncode, limited.stderr) == (0, "")
    assert "20 s have passed: taking a final checkpoint" in limited.stdout
    assert "diamond stopped. " in limited.stdout
    assert 0 < len(before) < TOTAL
    assert before == list(range(len(before)))
    assert hasty.returncode == 130, complaints
    assert "stopped at once, without a checkpoint" in said
    assert between == before
    assert (rest.returncode, rest.stderr) == (0, "")
    assert values(tmp_path) == list(range(TOTAL))


def diamond(directory: Path, slow_us: int, *more: str) -> tuple[str, ...]:
    flags = ("--store", str(directory / "store"), "--scratch", str(directory / "scratch"))
    given = {"total": TOTAL, "rate": 1000, "slow_us": slow_us, "table": directory / "table"}
    params = (word for key, value in given.items() for word in ("--param", f"{key}={value}"))
    return ("run", f"{ROOT / 'examples' / 'diamond.py'}:create", *MASTER, *flags, *params, *more)


def values(directory: Path) -> list[int]:
    return sorted(DeltaTable(directory / "table").to_pyarrow_table()["value"].to_pylist())


def has_read(scratch: Path, batches: int) -> bool:
    """Say whether the source of the numbers has filled its channel with so many batches."""
    channels = (Path(at) for at, _, _ in os.walk(scratch) if at.endswith("numbers/channel/data"))
    return any(len([*channel.glob("b*")]) >= batches for channel in channels)


def test_a_file_with_an_error_is_one_line_and_spark_is_not_started(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text("from cutwater import Pipeline\n\norders = Pipelin('orders')\n")

    run = cutwater("run", str(file), cwd=tmp_path)

    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        f"[CW-102] {file}:3: NameError: name 'Pipelin' is not defined. "
        "Change the declaration and run it again; nothing was started.\n"
    )


def test_a_step_that_fails_ends_the_run_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text(BROKEN)
    line = BROKEN.splitlines().index('        raise ValueError("seventy is too much")') + 1

    (tmp_path / "incoming").mkdir()
    for tens in range(10):
        made = tmp_path / "incoming" / f"{tens}.json"
        made.write_text("\n".join(f'{{"value": {10 * tens + number}}}' for number in range(10)))
        os.utime(made, (tens, tens))

    # Spark's own file of defaults is read beside our settings.
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.orders.incoming  incoming\n")
    restart = {"CUTWATER_RESTART_STRATEGY": "exponential", "CUTWATER_RESTART_DELAY": "100ms"}

    run = cutwater(
        *("run", str(file), *MASTER),
        cwd=tmp_path,
        env=environment(
            **restart,
            CUTWATER_CHECKPOINT_TARGET_BATCH="0s",  # one file a batch, however far behind
            SPARK_CONF_DIR=str(tmp_path / "conf"),
        ),
        deadline_s=SPARK_DEADLINE_S,
    )

    assert run.returncode == 1
    *before, last = run.stderr.splitlines()
    pauses = re.findall(r"; restarting in (\d+) ms$", "\n".join(before), re.MULTILINE)
    assert pauses == ["100", "200", "400"]
    assert last.startswith("[CW-602] step checked (")
    assert f"{file}:{line} in check) failed: ValueError: seventy is too much." in last
    poison = tmp_path / "incoming" / "7.json"
    # Which batch that is depends on how many files were there when the first one was cut.
    said = rf"Batch \d+, at which it failed 4 times in a row, reads the file {poison} \(numbers\)\."
    assert re.search(said, last), last
    assert "restart 3" in run.stdout
    # Spark's own words for the same failure are kept away from the terminal.
    assert "Spark ERROR" not in run.stderr

"""Declarative projects on `spark-pipelines` and on Cutwater: the same tables, unchanged files.

Then what only Cutwater does with them: killed, resumed, rewound and forked.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.command import SPARK_DEADLINE_S, cutwater
from tests.cli.declarative_projects import (
    TABLES,
    Place,
    deliver,
    expected,
    shop_in,
    shown,
)
from tests.cli.test_run_on_spark import begun, wait_for

MASTER = ("--master", "local[2]")
EXAMPLES = ("example_python_materialized_view", "example_sql_materialized_view")


def cutwater_run(place: Place, *words: str) -> "subprocess.CompletedProcess[str]":
    run = cutwater(
        "run",
        "spark-pipeline.yml",
        *MASTER,
        *place.flags,
        *words,
        cwd=place.directory,
        deadline_s=SPARK_DEADLINE_S,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    return run


def test_the_project_of_init_has_the_same_tables_on_both_runners(tmp_path: Path) -> None:
    Place(tmp_path).spark_pipelines("init", "--name", "trial")
    theirs, ours = Place(tmp_path / "trial"), Place(tmp_path / "ours")
    subprocess.run(["cp", "-r", theirs.directory, ours.directory], check=True)

    theirs.spark_pipelines("run", *theirs.flags)
    cutwater_run(ours)
    # A second run computes both again, and replaces what the first one wrote.
    cutwater_run(ours)

    tables = ours.read(*EXAMPLES)
    assert tables == theirs.read(*EXAMPLES)
    assert [len(tables[name].rows) for name in EXAMPLES] == [10, 5]


def test_the_shop_has_the_same_tables_on_both_runners_run_after_run(tmp_path: Path) -> None:
    theirs, ours = shop_in(tmp_path / "theirs"), shop_in(tmp_path / "ours")
    deliver(theirs, 0)
    deliver(ours, 0)
    theirs.spark_pipelines("run", *theirs.flags)
    cutwater_run(ours, "--available-now")
    deliver(theirs, 1)
    deliver(ours, 1)

    theirs.spark_pipelines("run", *theirs.flags)
    cutwater_run(ours, "--available-now")

    tables = ours.read(*TABLES)
    assert tables == theirs.read(*TABLES)
    assert shown(tables) == expected(2)


def test_the_shop_is_killed_resumed_rewound_and_forked(tmp_path: Path) -> None:
    place = shop_in(tmp_path / "shop")
    here = place.directory
    run = ("run", ".", *MASTER, *place.flags, "--interval", "1s")
    deliver(place, 0)
    with begun(here, run) as process:
        wait_for(process, committed(here, 100), "the first orders")
        deliver(place, 1)
        # Some of the second delivery is in channels, some is staged, and nothing is visible yet.
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    with begun(here, run) as process:
        wait_for(process, committed(here, 200), "the orders of both deliveries")
        after_kill = ask("savepoint", "spark-pipeline.yml", "--name", "before", cwd=here)
        deliver(place, 2)
        wait_for(process, committed(here, 300), "the orders of three deliveries")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SPARK_DEADLINE_S)
    assert after_kill.returncode == 0, after_kill.stderr
    assert shown(place.read(*TABLES)) == expected(3)

    forked = ask("fork", "shop", "trial", "--from", "before", cwd=here)
    rewound = ask("rewind", "spark-pipeline.yml", "--to", "before", "--yes", cwd=here)

    assert (rewound.returncode, forked.returncode) == (0, 0), rewound.stderr + forked.stderr
    assert shown(place.read(*TABLES, first=("CREATE DATABASE trial",))) == expected(2)
    cutwater_run(place, "--available-now")
    assert shown(place.read(*TABLES)) == expected(3)
    cutwater_run(place, "--available-now", "--name", "trial", "--param", "database=trial")
    fork = shown(place.read(*(f"trial.{name}" for name in TABLES)))
    assert fork["trial.gold_revenue"] == expected(3)["gold_revenue"]
    assert fork["trial.gold_large"] == expected(3)["gold_large"] - expected(2)["gold_large"]
    listed = ask("tables", "spark-pipeline.yml", cwd=here)
    assert [line.split()[0] for line in listed.stdout.splitlines()[2:]] == list(TABLES)
    state = ask("state", "show", "spark-pipeline.yml", "gold_revenue-flow", cwd=here)
    assert "3 rows" in state.stdout


def ask(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return cutwater(*words, cwd=cwd, deadline_s=SPARK_DEADLINE_S)


def committed(directory: Path, orders: int) -> Callable[[], bool]:
    """Say whether the table of orders shows so many rows, by the manifests of its commits."""
    commits = directory / "warehouse" / "bronze_orders" / "_cutwater" / "commits"

    def is_shown() -> bool:
        files = sorted(commits.glob("*.json"))
        return bool(files) and f'"rows":{orders}' in files[-1].read_text("utf-8").replace(" ", "")

    return is_shown

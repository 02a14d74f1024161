"""`cutwater doctor`: what it looks at, what it calls wrong, and that it leaves nothing behind."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import SPARK_DEADLINE_S, command, cutwater, environment, run_to_end

from cutwater.cli.commands import doctor
from cutwater.cli.commands.doctor import DoctorArguments


def checks(text: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(text)["checks"]}


def test_a_sound_machine_has_nothing_wrong(tmp_path: Path) -> None:
    store = tmp_path / "store"

    run = cutwater("doctor", "--store", str(store), "--scratch", str(tmp_path))

    assert run.returncode == 0, run.stdout
    assert run.stdout.endswith("Nothing wrong.\n")
    assert list(tmp_path.iterdir()) == []


def test_every_check_is_there_for_a_program(tmp_path: Path) -> None:
    run = cutwater("doctor", "--store", str(tmp_path / "s"), "--output", "json")

    found = checks(run.stdout)
    assert json.loads(run.stdout)["ok"] is True
    assert {entry["status"] for entry in found.values()} <= {"ok", "note"}
    assert {"Python", "Cutwater", "Spark", "Java", "Memory", "Cores", "Store", "Scratch"} <= set(
        found
    )


def test_a_store_and_a_scratch_that_cannot_work_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    run = cutwater(
        *("doctor", "--store", str(tmp_path / "file"), "--output", "json"),
        *("--scratch", str(tmp_path / "file")),
    )

    found = checks(run.stdout)
    assert run.returncode == 1
    assert found["Store"]["status"] == found["Scratch"]["status"] == "wrong"
    assert "is a file" in found["Store"]["found"]
    assert found["Store"]["advice"] == "Choose another one with --store."


def test_the_scratch_that_a_run_would_use_is_the_one_that_is_tried(tmp_path: Path) -> None:
    private = tmp_path / f"cutwater-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    private.symlink_to(tmp_path / "elsewhere")

    refused = cutwater("doctor", "--output", "json", env=environment(TMPDIR=str(tmp_path)))
    private.unlink()
    sound = cutwater("doctor", "--output", "json", env=environment(TMPDIR=str(tmp_path)))

    found = checks(refused.stdout)
    assert refused.returncode == 1
    assert found["Scratch"]["status"] == found["Spark's files"]["status"] == "wrong"
    assert found["Scratch"]["found"].startswith(f"{private} is a symbolic link, ")
    assert found["Scratch"]["advice"] == "Choose another one with --scratch."
    assert sound.returncode == 0, sound.stdout
    assert checks(sound.stdout)["Scratch"]["found"].startswith(f"{private / 'scratch'}, ")
    assert checks(sound.stdout)["Spark's files"]["found"].startswith(f"{private / 'spark'}, ")
    assert not private.exists()


def test_a_place_for_sparks_files_that_others_can_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    (tmp_path / "mine").mkdir(mode=0o700)
    named = environment(SPARK_LOCAL_DIRS=f"{tmp_path / 'mine'},{tmp_path / 'shared'}")

    run = cutwater("doctor", "--output", "json", env=named)

    found = checks(run.stdout)["Spark's files"]
    assert (run.returncode, found["status"]) == (0, "note")
    assert found["advice"] == (
        f"Other users can read what Spark keeps in {tmp_path / 'shared'}: chmod 700 it, or leave "
        "SPARK_LOCAL_DIRS out."
    )


def test_the_limit_of_open_files_is_looked_at(tmp_path: Path) -> None:
    words = command("doctor", "--store", str(tmp_path / "s"), "--output", "json")
    shell = f"ulimit -n 512 && exec {shlex.join(words)}"

    run = run_to_end(["sh", "-c", shell])

    found = checks(run.stdout)["Open files"]
    assert (run.returncode, found["status"]) == (1, "wrong")
    assert found["found"] == "at most 512"
    assert found["advice"].startswith("Raise the hard limit to 4,096 or more")


def test_a_store_that_is_in_use_keeps_what_it_has(tmp_path: Path) -> None:
    kept = tmp_path / "store" / "manifests" / "1.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")

    run = cutwater("doctor", "--store", str(tmp_path / "store"))

    assert run.returncode == 0, run.stdout
    assert kept.read_text() == "{}"


@pytest.mark.parametrize(
    ("installed", "status", "said"),
    [
        (
            "4.0.5",
            "note",
            "cutwater state`, `cutwater.state`) (4.1); transformWithState on rows (4",
        ),
        ("4.1.4", "note", "without what needs a newer Spark: zipWithIndex (4.2); nearestByJoin ("),
        ("4.2.1", "ok", ""),
        ("4.3.0", "ok", ""),
        ("4.4.0", "wrong", "Install a version that works: pip install 'pyspark>=4.0,<4.4'."),
    ],
)
def test_the_version_of_spark_is_told_with_what_it_lacks(
    installed: str, status: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "version", lambda _: installed)
    monkeypatch.delenv("SPARK_HOME", raising=False)

    found = next(
        one for one in (check(DoctorArguments()) for check in doctor.CHECKS) if one.name == "Spark"
    )

    assert (found.found, found.status) == (installed, status)
    assert said in found.advice
    assert bool(said) == bool(found.advice)


def test_a_remote_spark_is_wrong(tmp_path: Path) -> None:
    asked = environment(SPARK_REMOTE="sc://somewhere", SPARK_API_MODE="Connect")

    run = cutwater("doctor", cwd=tmp_path, env=asked)

    assert run.returncode == 1
    advice = "A pipeline needs a classic session: unset SPARK_REMOTE and SPARK_API_MODE."
    assert advice in run.stdout
    assert run.stdout.endswith("1 wrong.\n")


def test_the_self_test_runs_restores_and_compares_and_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    run = cutwater(
        *("doctor", "--self-test", "--master", "local[2]", "--output", "json"),
        *("--scratch", str(scratch), "--conf", "spark.driver.memory=1g"),
        cwd=tmp_path,
        deadline_s=SPARK_DEADLINE_S,
    )

    assert run.returncode == 0, (run.stdout, run.stderr)
    told = json.loads(run.stdout)["self_test"]
    assert (told["supported"], told["reason"]) == (True, None)
    assert [(phase["name"], phase["ok"]) for phase in told["phases"]] == [
        ("start Spark", True),
        ("take a checkpoint", True),
        ("end without another", True),
        ("restore and finish", True),
        ("compare all rows", True),
    ]
    assert all(phase["duration_ms"] > 0 for phase in told["phases"])
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.iterdir()) == []


def test_a_spark_that_does_not_start_is_not_supported(tmp_path: Path) -> None:
    run = cutwater(
        *("doctor", "--self-test", "--master", "nonsense"),
        cwd=tmp_path,
        deadline_s=SPARK_DEADLINE_S,
    )

    assert run.returncode == 1
    last = run.stdout.splitlines()[-1]
    assert last.startswith("Not supported: start Spark: Spark did not start on nonsense: ")


def test_the_self_test_waits_until_nothing_else_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    run = cutwater("doctor", "--self-test", "--store", str(tmp_path / "file"), cwd=tmp_path)

    assert run.returncode == 1
    expected = "The self-test was not run: fix the problems first."
    assert run.stdout.splitlines()[-1] == expected

"""Declarative projects on the command line, as far as no Spark is needed."""

import os
from pathlib import Path

import pytest
from tests.cli.command import cutwater
from tests.cli.declarative_projects import SHOP


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (("--refresh", "orders"), "all tables of a pipeline commit together"),
        (("--full-refresh", "orders"), "one checkpoint covers all tables of a pipeline"),
        (("--full-refresh-all",), "one checkpoint covers all tables of a pipeline"),
    ],
)
def test_a_run_has_no_choice_of_tables(option: tuple[str, ...], reason: str) -> None:
    run = cutwater("run", str(SHOP), *option)

    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"[CW-101] {option[0]}: {reason}")


def test_a_project_is_not_planned_without_spark() -> None:
    run = cutwater("plan", str(SHOP), "--no-spark")

    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        "[CW-101] --no-spark: only a call of its flows shows what a declarative project reads; "
        "leave it out. Change the option and start again; nothing was written.\n"
    )


@pytest.mark.parametrize("command", [("plan",), ("tables",), ("state", "show")])
def test_a_spec_that_does_not_exist_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    words = ("gone.yml", "step") if command == ("state", "show") else ("gone.yml",)

    run = cutwater(*command, *words, cwd=tmp_path)

    assert (run.returncode, run.stdout) == (2, "")
    assert "gone.yml does not exist; name the spec of your project." in run.stderr


def test_a_spec_stands_for_the_name_of_its_pipeline(tmp_path: Path) -> None:
    run = cutwater("tables", os.path.relpath(SHOP / "spark-pipeline.yml", tmp_path), cwd=tmp_path)

    assert run.returncode == 2
    assert "there is no store with a pipeline in it" in run.stderr


def test_problems_of_a_spec_are_reported_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorages: x\n", encoding="utf-8")

    run = cutwater("run", ".", cwd=tmp_path)

    assert (run.returncode, run.stdout) == (2, "")
    assert "[CW-103] pipeline shop has 2 problems:" in run.stderr
    assert "spark-pipeline.yml:2: a spec has no field storages; it has catalog" in run.stderr

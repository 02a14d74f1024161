"""`cutwater plan`, and with it how a file is loaded and its mistakes are reported."""

import json
from pathlib import Path

import pytest
from tests.cli.command import PIPELINE, SPARK_DEADLINE_S, cutwater

from cutwater.store.backends.local import LocalBackend
from cutwater.store.records.catalog import open_pipeline

FACTORY = """
def make(env, size="3") -> Pipeline:
    return build(f"orders_{env}_{size}")
"""
FIRST_LINE = len(PIPELINE.splitlines()) + 1


def write(directory: Path, *parts: str, name: str = "orders.py") -> str:
    file = directory / name
    file.write_text("".join(parts))
    return str(file)


def test_the_only_pipeline_of_a_file_is_drawn(tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, "orders = build('orders')\nsame = orders\n")

    run = cutwater("plan", file, "--no-spark")

    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:2] == [
        "pipeline orders: 1 step, 0 channels, 1 sink",
        "└── step out (append mode)",
    ]


def test_a_plan_can_be_had_as_json(tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, "orders = build('orders')\n")

    run = cutwater("plan", file, "--output", "json", "--no-spark")

    assert run.returncode == 0, run.stderr
    planned = json.loads(run.stdout)
    assert planned["pipeline"] == "orders"
    assert [(step["name"], step["spark"]) for step in planned["steps"]] == [("out", None)]


def test_one_of_several_pipelines_is_named_with_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, "first = build('first')\nsecond = build('second')\n")

    unnamed = cutwater("plan", file)
    named = cutwater("plan", f"{file}:second", "--no-spark")

    assert unnamed.returncode == 2
    assert "has several pipelines; name one: orders.py:first, orders.py:second." in unnamed.stderr
    assert named.stdout.startswith("pipeline second:")


def test_a_function_makes_a_pipeline_of_parameters(tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, FACTORY)

    run = cutwater("plan", f"{file}:make", "--param", "env=a=b", "--param", "size=5")

    assert run.returncode == 2  # A name cannot have an equals sign, so the value came through.
    assert "orders_a=b_5" in run.stderr
    assert cutwater("plan", f"{file}:make", "--param", "env=x", "--no-spark").stdout.startswith(
        "pipeline orders_x_3:"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((":make",), "--param: make needs env as well; add --param env=…."),
        (
            (":make", "--param", "env=1", "--param", "sise=2"),
            "--param: sise: no such parameter; make takes env, size.",
        ),
        ((":make", "--param", "env"), "--param: 'env' is not of the form key=value."),
        ((":make", "--param", "env=1", "--param", "env=2"), "--param: env is repeated."),
        (
            (":orders", "--param", "env=1"),
            "only a function that returns a pipeline takes parameters.",
        ),
        ((":wrong",), ":wrong returns str and not a Pipeline."),
        ((":nothing",), "no such name: nothing; name one: orders.py:orders, orders.py:make."),
        ((":NUMBER",), "no pipeline or function: NUMBER; name one:"),
    ],
)
def test_a_wrong_name_or_parameter_is_reported_in_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    rest = "orders = build('orders')\nNUMBER = 3\ndef wrong(): return 'x'\n"
    file = write(tmp_path, PIPELINE, FACTORY, rest)

    run = cutwater("plan", file + arguments[0], *arguments[1:])

    assert run.returncode == 2
    assert run.stderr.startswith("[CW-101] ")
    assert sentence in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("build('no good name')", "'no good name' cannot be the name"),
    ],
)
def test_an_error_inside_the_file_is_reported_with_its_line(
    line: str, reason: str, tmp_path: Path
) -> None:
    file = write(tmp_path, PIPELINE, f"\n{line}\n")

    run = cutwater("plan", file)

    assert run.returncode == 2
    assert run.stderr.startswith(f"[CW-102] {tmp_path}/orders.py:")
    assert reason in run.stderr
    assert "Traceback" not in run.stderr


def test_the_line_of_an_error_is_the_innermost_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import json\n\ndef read():\n    json.loads('{')\n")
    file = write(tmp_path, "import beside\nbeside.read()\n")

    run = cutwater("plan", file)

    assert run.stderr.startswith(f"[CW-102] {tmp_path}/beside.py:4: JSONDecodeError: ")


def test_a_trace_is_shown_when_it_is_requested(tmp_path: Path) -> None:
    file = write(tmp_path, "1 / 0\n")

    run = cutwater("plan", file, "--debug")

    assert run.returncode == 1
    assert "Traceback" in run.stderr


def test_an_error_is_json_for_a_program(tmp_path: Path) -> None:
    run = cutwater("plan", str(tmp_path / "no.py"), "--output", "json")

    error = json.loads(run.stdout)["error"]
    assert (run.returncode, run.stderr) == (2, "")
    assert (error["code"], error["exit_code"]) == ("CW-101", 2)
    assert "does not exist" in error["message"]


@pytest.mark.parametrize("name", ["json.py", "cutwater.py", "my-orders.v2.py"])
def test_a_file_may_have_the_name_of_something_else(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, "orders = build('orders')\n", name=name)

    run = cutwater("plan", file, "--no-spark")

    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("line", ["F.udf('long')(abs)", "F.col('x') > 1"])
def test_a_file_that_needs_spark_to_be_imported_gets_it(line: str, tmp_path: Path) -> None:
    rest = f"from pyspark.sql import functions as F\nthing = {line}\norders = build('orders')\n"
    file = write(tmp_path, PIPELINE, rest)

    run = cutwater("plan", file, "--no-spark", deadline_s=SPARK_DEADLINE_S)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("pipeline orders: 1 step")


def test_everything_that_is_wrong_with_a_plan_is_reported_at_once(tmp_path: Path) -> None:
    rest = "orders = build('orders')\norders.view(lambda a: a, name='x')\n"
    rest += "orders.view(lambda b: b, name='y')\n"
    file = write(tmp_path, PIPELINE, rest)

    run = cutwater("plan", file)

    assert run.returncode == 2
    assert run.stderr.startswith("[CW-103] pipeline orders has ")
    assert f"orders.py:{FIRST_LINE + 1}" in run.stderr
    assert f"orders.py:{FIRST_LINE + 2}" in run.stderr


def test_spark_says_how_every_step_runs(tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, "orders = build('orders')\n")

    run = cutwater("plan", file, "--master", "local[1]", cwd=tmp_path, deadline_s=SPARK_DEADLINE_S)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        "pipeline orders: 1 step, 0 channels, 1 sink",
        "└── step out (append mode)",
        "    ├── source numbers  [orders.py:15]",
        "    ├── sink out → nowhere nowhere  [orders.py:16]",
        "    │   commits at every checkpoint, visibility checkpoint",
        "    └── runs as a query, keeps no state",
        "        rows: timestamp timestamp, value bigint",
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["orders.py"]


def test_what_only_spark_finds_wrong_is_reported_with_its_line(tmp_path: Path) -> None:
    rest = "orders = build('orders')\n@orders.sink(Nowhere())\ndef wrong(numbers):\n"
    file = write(tmp_path, PIPELINE, rest, "    return numbers.select('nothing')\n")

    run = cutwater("plan", file, "--master", "local[1]", deadline_s=SPARK_DEADLINE_S)

    assert run.returncode == 2
    first, problem, _ = run.stderr.splitlines()
    assert first == "[CW-103] pipeline orders has one problem:"
    assert problem.startswith(f"  {file}:{FIRST_LINE + 3}: sink wrong raises AnalysisException: ")
    assert run.stdout == ""


def test_where_spark_and_targets_are_away_only_what_is_declared_is_shown(tmp_path: Path) -> None:
    rest = "orders = build('orders')\nfrom cutwater import sinks\n"
    rest += "target = sinks.postgres('env:NO_SUCH_DSN', table='t')\n"
    rest += "orders.sink('away', target, of='numbers')\n"
    file = write(tmp_path, PIPELINE, rest)

    run = cutwater("plan", file, "--master", "nonsense", deadline_s=SPARK_DEADLINE_S)

    assert run.returncode == 0, run.stderr
    first, second = run.stderr.splitlines()
    assert first.startswith("Spark was not used: Spark did not start on nonsense: ")
    assert second == (
        "The target of sink away was not looked at: dsn: the environment has no NO_SUCH_DSN."
    )
    assert run.stdout.startswith("pipeline orders: 3 steps")
    assert "runs as" not in run.stdout


def test_a_plan_against_nothing_is_refused_before_spark_starts(tmp_path: Path) -> None:
    file = write(tmp_path, PIPELINE, "orders = build('orders')\n")
    store = tmp_path / "store"
    against = ("plan", file, "--against", "orders", "--store", str(store))

    missing = cutwater(*against)
    open_pipeline(LocalBackend(store), "orders")
    empty = cutwater(*against)

    assert (missing.returncode, empty.returncode) == (2, 2)
    assert f"--store: there is no store with a pipeline in it at {store}." in missing.stderr
    assert "orders has no checkpoint: a run would start empty." in empty.stderr

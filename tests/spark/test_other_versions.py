"""What one version of Spark has begun goes on under a later one; under an older one it is refused.

The golden files were made by `scripts/golden_versions.py`, one for each version. `make versions`
and `make test` run these tests on every version, so that every ordered pair is tried.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark import version_pipelines as golden
from tests.spark.runs import example, options, run, starter, table
from typer.testing import CliRunner

import cutwater
from cutwater import Pipeline, sinks, sources
from cutwater.cli.load import load
from cutwater.cli.main import app
from cutwater.errors import CodeChanged, PlanError, SessionError
from cutwater.spark.versions import FEATURES, VERSIONS, SparkVersion, refusal, require_version

pytestmark = pytest.mark.matrix

MADE_BY = [pytest.param(version, id=f"made by {version.name}") for version in VERSIONS]


def command(store: Path, *words: str) -> Any:  # noqa: ANN401 - JSON
    """Call a command in this process, whose Spark it finds running."""
    result = CliRunner().invoke(app, [*words, "--store", str(store), "--output", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def steps_of(made_by: SparkVersion, here: SparkVersion) -> list[str]:
    """Return the steps whose state a later version can read."""
    lost = made_by is not here and made_by.minor == (4, 0)
    return ["totals", "unique", "pairs", *([] if lost else ["nth"])]


@pytest.mark.parametrize("made_by", MADE_BY)
def test_a_checkpoint_restores_on_the_same_and_on_later_versions_or_is_refused_with_the_reason(
    spark: SparkSession, tmp_path: Path, made_by: SparkVersion
) -> None:
    here = require_version(spark.version)
    golden.unpack(f"spark-{made_by.name}", tmp_path)
    names = steps_of(made_by, here)
    if here.minor < made_by.minor or names != steps_of(made_by, made_by):
        check_refused(spark, tmp_path, made_by)
    if here.minor >= made_by.minor:
        check_restored(spark, tmp_path, names)


def check_restored(spark: SparkSession, tmp_path: Path, names: list[str]) -> None:
    """Let the steps whose state can be read go on to the end."""
    before = golden.given(tmp_path)
    kept = {f"{name}_rows" for name in names}
    wanted = {name: rows for name, rows in golden.expected().items() if name in kept}

    given = options(tmp_path, available_now=True, allow_dropped=True)
    result = run(golden.create(tmp_path, *names), spark, given)

    assert result.finished
    after = {name: rows for name, rows in golden.given(tmp_path).items() if name in kept}
    assert after == wanted
    assert all(before.get(name, Counter()) < rows for name, rows in wanted.items())


def check_refused(spark: SparkSession, tmp_path: Path, made_by: SparkVersion) -> None:
    """Find the reason in the refusal of state that this version cannot read."""
    with pytest.raises(CodeChanged) as refused:
        run(golden.create(tmp_path), spark, options(tmp_path, available_now=True))

    said = str(refused.value)
    reason = (
        f"step nth runs on Spark {spark.version}, which cannot read the state that Spark "
        f"{made_by.newest} wrote: Spark 4.0 marks the snapshots of transformWithState as v2"
    )
    older = f"step totals runs on Spark {spark.version}, which is older than the {made_by.newest} "
    is_later = require_version(spark.version).minor > made_by.minor
    assert (reason if is_later else older) in said
    assert "Nothing was changed" in said


def limited(tmp_path: Path) -> Pipeline:
    made = Pipeline("limited")
    made.source(lambda spark: sources.sequence(spark, total=9), name="numbers")
    made.step(lambda numbers: numbers.limit(3), name="few")
    made.sink("rows", sinks.delta(str(tmp_path / "table")), of="few")
    return made


def transformed(tmp_path: Path) -> Pipeline:
    made = example("transform_with_state").create(table=str(tmp_path / "table"))
    assert isinstance(made, Pipeline)
    return made


@pytest.mark.parametrize(
    ("build", "feature", "instead"),
    [
        (transformed, "transformWithState on rows", "use transformWithStateInPandas"),
        (limited, "a limit on a stream", "filter the rows"),
    ],
)
def test_what_needs_a_newer_version_is_refused_with_the_reason(
    spark: SparkSession,
    tmp_path: Path,
    build: Callable[[Path], Pipeline],
    feature: str,
    instead: str,
) -> None:
    (known,) = (listed for listed in FEATURES if listed.name == feature)
    if require_version(spark.version).minor > (4, 0):
        assert refusal(known, spark.version) is None
        return

    with pytest.raises(PlanError) as refused:
        run(build(tmp_path), spark, options(tmp_path))

    why = f"{feature} needs Spark 4.1 or newer, and this is Spark {spark.version}; {instead}."
    assert why in str(refused.value)


@pytest.mark.parametrize("made_by", MADE_BY)
def test_steps_without_state_go_on_from_their_positions_on_every_version(
    spark: SparkSession, tmp_path: Path, made_by: SparkVersion
) -> None:
    golden.unpack(f"spark-{made_by.name}", tmp_path)
    before = golden.given(tmp_path)["unique_rows"].total()

    given = options(tmp_path, available_now=True, allow_new=True, allow_dropped=True)
    run(golden.create(tmp_path, "all_of"), spark, given)

    after = golden.given(tmp_path)["all_of_rows"]
    assert after == Counter((number,) for number in range(before, golden.TOTAL))


@pytest.mark.parametrize("made_by", MADE_BY)
def test_the_state_of_a_checkpoint_is_shown(
    spark: SparkSession, tmp_path: Path, made_by: SparkVersion
) -> None:
    golden.unpack(f"spark-{made_by.name}", tmp_path)
    here = require_version(spark.version)
    rows = golden.given(tmp_path)["unique_rows"].total()
    steps = {"unique": rows, "nth": golden.KEYS}

    def count(step: str) -> int | str:
        try:
            return cutwater.state(spark, tmp_path / "store", "versions", step).count()
        except SessionError as error:
            return error.message

    shown = {step: count(step) for step in steps}

    lost = (
        f"Spark {spark.version} cannot read the state of nth that Spark {made_by.newest} wrote: "
        "Spark 4.0 marks the snapshots of transformWithState as v2, and later versions read v1."
    )
    unreadable = (
        "reading the state of a step (`cutwater state`, `cutwater.state`) needs Spark 4.1 or "
        f"newer, and this is Spark {spark.version}: run the pipeline and read its state on Spark "
        "4.1 or newer."
    )
    if here.minor == (4, 0):
        assert shown == dict.fromkeys(steps, unreadable)
    else:
        assert shown == {**steps, **({"nth": lost} if made_by.minor == (4, 0) else {})}


def ended(spark: SparkSession, tmp_path: Path, query: Path) -> dict[int, tuple[int, int]]:
    """Let a plain query go on over the files that are left."""
    golden.move_files(query, tmp_path)
    golden.write_files(tmp_path, range(golden.FILES))
    return golden.plain(spark, tmp_path, query)


@pytest.mark.parametrize("made_by", MADE_BY)
def test_a_plain_query_of_another_version_is_adopted_and_goes_on(
    spark: SparkSession, tmp_path: Path, made_by: SparkVersion
) -> None:
    golden.unpack(f"spark-{made_by.name}", tmp_path)
    shutil.rmtree(tmp_path / "store")
    golden.move_files(tmp_path / "query", tmp_path)
    golden.write_files(tmp_path, range(golden.BEFORE + 1))
    file = tmp_path / "adopting.py"
    file.write_text(golden.ADOPTING, encoding="utf-8")
    words = ("--param", f"directory={tmp_path}", "--query", f"totals={tmp_path / 'query'}", "--yes")

    command(tmp_path / "store", "adopt", f"{file}:create", *words)
    loaded = load(f"{file}:create", {"directory": str(tmp_path)}, starter(spark))
    run(loaded.pipeline, spark, options(tmp_path, available_now=True))

    shown = {k: (total, n) for k, total, n in table(tmp_path / "table", "k", "total", "n")}
    assert shown == golden.sums(golden.BEFORE + 1)
    command(tmp_path / "store", "eject", "adopting", "--to", str(tmp_path / "plain"))
    found = ended(spark, tmp_path, tmp_path / "plain" / "totals")
    assert found == golden.sums(golden.FILES)


@pytest.mark.parametrize("made_by", MADE_BY)
def test_what_another_version_adopted_is_ejected_and_goes_on(
    spark: SparkSession, tmp_path: Path, made_by: SparkVersion
) -> None:
    golden.unpack(f"spark-{made_by.name}", tmp_path)

    command(tmp_path / "adopted", "eject", "adopting", "--to", str(tmp_path / "plain"))

    found = ended(spark, tmp_path, tmp_path / "plain" / "totals")
    assert found == golden.sums(golden.FILES)

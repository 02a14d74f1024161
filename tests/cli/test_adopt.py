"""`cutwater adopt` and `cutwater eject`: what is refused before Spark is started, and how."""

import json
from pathlib import Path

import pytest
from tests.cli.command import PIPELINE, cutwater
from tests.golden.archives import unpacked

from cutwater.store.backends.local import LocalBackend
from cutwater.store.records.catalog import open_pipeline


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(f"{PIPELINE}\n\npipeline = build('counting')\n", encoding="utf-8")
    return path


def test_what_is_wrong_with_directories_is_said_before_spark_starts(file: Path) -> None:
    query = unpacked("hdfs-aggregation", file.parent)
    (query / "commits").rename(query / "elsewhere")
    flags = ("--query", f"a={file.parent / 'nowhere'}", "--query", f"b={query}")
    store = file.parent / "store"
    store.mkdir()

    result = cutwater("adopt", str(file), *flags, "--store", str(store), cwd=file.parent)

    assert result.returncode == 2
    assert "[CW-104] pipeline counting has 2 problems:" in result.stderr
    assert f"a: {file.parent / 'nowhere'} is not a directory." in result.stderr
    assert f"b: {query} has no commits: it is no checkpoint directory" in result.stderr
    assert list(store.iterdir()) == []
    assert not (file.parent / ".cutwater").exists()


def test_eject_says_which_pipelines_there_are(tmp_path: Path) -> None:
    store = tmp_path / "store"
    flags = ("--to", str(tmp_path / "out"), "--store", str(store), "--output", "json")

    nothing = cutwater("eject", "orders", *flags)
    assert not store.exists()
    open_pipeline(LocalBackend(store), "other")
    another = cutwater("eject", "orders", *flags)
    empty = cutwater("eject", "other", *flags)

    errors = [json.loads(process.stdout)["error"] for process in (nothing, another, empty)]
    assert {error["code"] for error in errors} == {"CW-101"}
    assert [error["message"].partition(": ")[2] for error in errors] == [
        f"there is no store with a pipeline in it at {store}.",
        f"{LocalBackend(store).url} has no 'orders'; it has other.",
        "other has no checkpoint yet.",
    ]
    assert not (tmp_path / "out").exists()

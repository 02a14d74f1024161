"""Makes the golden checkpoint directories of plain queries, and asks Spark which files count.

    python tests/golden/make_query_directories.py KIND...      (all kinds without arguments)

For every kind a query runs over seven files, one a batch. Then the directory is rebuilt from
`files_of` at batch 3, and Spark's `statestore` reader is asked: the rebuilt directory must show the
same rows, and without any single one of its state files it must not, but for those listed as
`description`, which describe the state to people and to later batches. So what goes into
`expected.json` is what Spark needs, not what the code under test happens to list. The directories
are stored as archives: they have dozens of small files.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.plain_queries import (
    AT,
    BEGUN,
    KINDS,
    OFTEN,
    Kind,
    World,
    conf,
    restart_maintenance,
    wait_for,
    write_inputs,
)

from cutwater.spark.checkpoint_dir.files import files_of, pin, settle
from cutwater.spark.session.session import embedded_session

QUERIES = Path(__file__).parent / "queries"
SNAPSHOTS = (".zip", ".snapshot")


def _kinds() -> dict[str, Kind]:
    def begun(query: str, how: str) -> Kind:
        return replace(KINDS[query], conf={**KINDS[query].conf, **BEGUN[how]})

    return {
        **{f"{how}-aggregation": begun("aggregation", how) for how in BEGUN},
        **{f"{how}-join": begun("join", how) for how in ("hdfs", "rocksdb-1")},
        **{f"{how}-chained": begun("chained", how) for how in ("hdfs", "rocksdb-1-changelog")},
        "rocksdb-1-transformWithState": begun("transformWithState", "rocksdb-1"),
        "rocksdb-2-join-format-3": begun("join-format-3", "rocksdb-2-changelog"),
        "stateless": KINDS["stateless"],
    }


def _shows(world: World, checkpoint: Path) -> object:
    try:
        return world.state(checkpoint, AT)
    except (PySparkException, Py4JJavaError):
        return None


def _make(world: World, work: Path) -> dict[str, object]:
    """Make a directory below `work`; return what is expected of it."""
    original, rebuilt = work / "original", work / "rebuilt"
    world.run(original)
    stateful = bool(world.kind.views)
    if stateful:
        wait_for(
            lambda: any(file.endswith(SNAPSHOTS) for file in files_of(original, AT)), "snapshot"
        )
    restart_maintenance(world.spark)
    shows = world.state(original, AT)
    pin(original, AT, rebuilt, linked=False)
    settle(rebuilt)
    assert world.state(rebuilt, AT) == shows
    names = files_of(rebuilt, AT)
    needed: list[str] = []
    description: list[str] = []
    for name in names:
        if not name.startswith("state/"):
            continue
        (rebuilt / name).rename(work / "away")
        (needed if _shows(world, rebuilt) != shows else description).append(name)
        (work / "away").rename(rebuilt / name)
    sys.stdout.write(f"{len(names)} files, {len(needed)} needed, not needed: {description}\n")
    assert all("_metadata/" in name or "_stateSchema/" in name for name in description)
    return {
        "batch": AT,
        "logs": [n for n in names if n not in {*needed, *description}],
        "needed": needed,
        "description": description,
    }


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out the owner and the time of a file."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> None:
    """Make the requested kinds, and keep what is there of the others."""
    kinds = _kinds()
    wanted = sys.argv[1:] or list(kinds)
    file = QUERIES / "expected.json"
    expected = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    spark: SparkSession = embedded_session("local[2]", app_name="golden")
    QUERIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, conf(spark, OFTEN):
        inputs = Path(directory) / "inputs"
        inputs.mkdir()
        write_inputs(inputs)
        for name in wanted:
            sys.stdout.write(f"{name}: ")
            work = Path(directory) / name
            restart_maintenance(spark)
            expected[name] = _make(World(spark, kinds[name], inputs), work)
            for left in [*(work / "original").rglob(".*"), *(work / "original").rglob("*.crc")]:
                left.unlink()
            with tarfile.open(QUERIES / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(work / "original", name, filter=_without_owner)
            shutil.rmtree(work)
    file.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

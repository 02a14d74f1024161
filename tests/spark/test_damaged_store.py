"""A store that lost or changed something: never a wrong result, and the thing is named."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.runs import options, run

from cutwater import Pipeline, sinks, sources
from cutwater.errors import CutwaterError
from cutwater.planning.planner import plan
from cutwater.protocol.cut import Cut
from cutwater.run import _open_sinks
from cutwater.runtime.context import RunContext
from cutwater.runtime.recovery import Recovery
from cutwater.spark.engine.build import SparkEngine
from cutwater.spark.jvm.internals import Internals
from cutwater.store.backends.local import LocalBackend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import open_pipeline

RANGES = 3


def counting(directory: Path) -> Pipeline:
    pipeline = Pipeline("counting")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        return sources.sequence(spark, total=4000, batch_max=1000)

    @pipeline.step
    def counts(numbers: DataFrame) -> DataFrame:
        return numbers.withWatermark("at", "1 second").groupBy(F.window("at", "1 second")).count()

    @pipeline.step
    def changes(counts: DataFrame) -> DataFrame:
        return counts.where("count > 0")

    pipeline.sink("table", sinks.delta(str(directory / "table")), of=changes)
    return pipeline


class Damage(NamedTuple):
    """One thing done to one file; None removes it."""

    file: Path
    kind: str
    content: bytes | None

    def __str__(self) -> str:
        return f"{self.file} {self.kind}"


def damages(store: Path) -> Iterator[Damage]:
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        file, data = path.relative_to(store), path.read_bytes()
        if file.parts[0] != "names":
            # Without its name a pipeline is not known, and one of that name is a new one.
            yield Damage(file, "removed", None)
        if not data:
            continue
        yield Damage(file, "emptied", b"")
        yield Damage(file, "truncated", data[: len(data) // 2])
        step = max(1, len(data) // RANGES)
        for start in range(0, len(data), step):
            middle = min(start + step // 2, len(data) - 1)
            flipped = bytes([data[middle] ^ 0x20])
            changed = data[:middle] + flipped + data[middle + 1 :]
            yield Damage(file, f"byte {middle} flipped", changed)


def words_for(file: Path) -> tuple[str, ...]:
    """How an error may name a file: by its name, or by the number in it."""
    number = file.stem.lstrip("0")
    return (file.name, f"checkpoint {number} ", f"slot {number} ", "its log")


def recovered(context: RunContext, store: Path) -> Cut | None:
    """Recover as a new driver on another machine would, and fetch everything the cut needs."""
    backend = LocalBackend(store)
    opened = PipelineStore.of(backend, open_pipeline(backend, "counting"))
    elsewhere = dataclasses.replace(context, store=opened, scratch=store / "scratch")
    cut = Recovery(elsewhere, []).run().cut
    if cut is not None:
        for name, snapshot in cut.snapshots.items():
            opened.blobs(cut.generation).fetch_tree(snapshot.state, store / "fetched" / name)
    return cut


def test_every_object_of_a_store_damaged_in_turn(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = counting(tmp_path)
    run(pipeline, spark, options(tmp_path))
    store = tmp_path / "store"
    physical, backend = plan(pipeline), LocalBackend(store)
    identity = open_pipeline(backend, "counting")
    context = RunContext(
        plan=physical,
        engine=SparkEngine(Internals(spark)),
        store=PipelineStore.of(backend, identity),
        sinks=_open_sinks(physical, spark, identity),
        options=options(tmp_path).checkpoint.options(),
        bound=options(tmp_path).checkpoint.channel_bound(),
        scratch=tmp_path / "scratch",
    )
    sound_copy = tmp_path / "sound"
    shutil.copytree(store, sound_copy)
    sound = recovered(context, sound_copy)
    assert sound is not None
    needed = {ref.name for snapshot in sound.snapshots.values() for ref in snapshot.blobs}
    needed |= {
        path.relative_to(store).as_posix()
        for path in store.glob(f"pipelines/{identity}/log/*")
        if path.is_file()
    }
    needed |= {
        path.relative_to(store).as_posix()
        for path in store.glob(f"pipelines/{identity}/manifests/*")
        if str(sound.checkpoint_id) in path.name.lstrip("0")
    }
    wrong, refused = [], 0
    for damage in damages(store):
        copy = tmp_path / "copy"
        shutil.copytree(store, copy, copy_function=os.link)
        target = copy / damage.file
        target.unlink()
        if damage.content is not None:
            target.write_bytes(damage.content)
        try:
            found = recovered(context, copy)
        except CutwaterError as error:
            refused += 1
            if not any(word in str(error) for word in words_for(damage.file)):
                wrong.append(f"{damage}: not named in {error}")
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            wrong.append(f"{damage}: {type(error).__name__} {error}")
        else:
            if damage.file.as_posix() in needed:
                wrong.append(f"{damage}: went unseen")
            elif found != sound:
                wrong.append(f"{damage}: another cut, {found and found.checkpoint_id}")
        shutil.rmtree(copy)
    assert wrong == []
    assert refused >= 5 * len(needed)

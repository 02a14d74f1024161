"""Adopting and ejecting without Spark: what is refused and why, and what is in the store after."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import pytest
from tests.golden.archives import unpacked
from tests.trees import stored_tree

from cutwater import Pipeline
from cutwater.errors import (
    AdoptionRefused,
    ConfigError,
    Corrupt,
    Fenced,
    PipelineHeld,
    RecoveryError,
)
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot, StepId
from cutwater.operations.migration.adopt import Adoption, Looked, adopt, examine
from cutwater.operations.migration.eject import Ending, eject
from cutwater.operations.migration.plain_query import look, trace
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.protocol.cut import CheckpointKind, Committable, Cut
from cutwater.protocol.decisions import Claim, Decision
from cutwater.protocol.evolution.identity import OperatorIdentity, StepIdentity
from cutwater.spark.analysis.analysis import AnalyzedStep, ExecutionMode
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind, note_streams, read_streams
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Committed
from cutwater.store.records.lease import Lease, Leases
from cutwater.store.records.targets import StoredTarget

ORDERS = Stream("orders", StreamKind.OUTSIDE, "FileSource[/]")
TOTALS = Stream("totals", StreamKind.CHANNEL)
PULSE = Stream("pulse", StreamKind.PULSE)
TARGETS = {SinkId("one"): StoredTarget("nowhere", "one")}


class Nowhere:
    format = "nowhere"
    accepts = frozenset({"append", "update", "complete"})

    def describe(self) -> str:
        return "nowhere"


def planned(partitions: int = 2) -> PhysicalPlan:
    """A step that chains its source, and two sinks after it; a step on a channel beside."""
    made = Pipeline("adopting")

    def orders(spark: object) -> object:
        return spark

    def totals(orders: object) -> object:
        return orders

    made.source(orders)
    made.step(totals, partitions=partitions)
    made.sink("one", Nowhere(), of="totals")
    made.sink("two", Nowhere(), of="totals")
    return plan(made)


def form(
    mode: ExecutionMode = ExecutionMode.QUERY,
    *,
    stateful: bool = True,
    **more: Any,  # noqa: ANN401
) -> AnalyzedStep:
    nothing = cast("Any", None)
    operators = (OperatorIdentity("Aggregate"),) if stateful else ()
    identity = StepIdentity(operators=operators)
    more = {"has_watermark": False, "lines": (ORDERS,), "identity": identity, **more}
    return AnalyzedStep(nothing, nothing, mode, is_stateful=stateful, **more)


def forms(totals: AnalyzedStep | None = None) -> Mapping[StepId, AnalyzedStep]:
    batch = form(ExecutionMode.BATCH, stateful=False, lines=(TOTALS,))
    return {
        StepId("totals"): totals or form(),
        StepId("one"): batch,
        StepId("two"): batch,
    }


def looked(directory: Path) -> Looked:
    return Looked(look(directory), trace(directory))


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """A plain query with Spark's default state; six batches are committed."""
    return unpacked("hdfs-aggregation", tmp_path)


def examined(
    query: Path, step: str = "totals", totals: AnalyzedStep | None = None, *, rerun: bool = False
) -> Adoption:
    return examine(planned(), forms(totals), {step: looked(query)}, allow_uncommitted=rerun)


def store() -> PipelineStore:
    return PipelineStore.of(MemoryBackend(), PipelineId("p"))


def plan_next_batch(query: Path) -> None:
    """What a query leaves behind that was stopped in the middle of a batch."""
    shutil.copyfile(query / "offsets" / "6", query / "offsets" / "7")


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# -- what is refused


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (shutil.rmtree, "is not a directory"),
        (lambda query: (query / "metadata").unlink(), "has no metadata: it is no checkpoint"),
        (lambda query: shutil.rmtree(query / "offsets"), "has no offsets: it is no checkpoint"),
        (
            lambda query: [path.unlink() for path in (query / "commits").iterdir()],
            "has no committed batch",
        ),
        (lambda query: (query / "offsets" / "5").unlink(), "offsets/5 is not there"),
        (lambda query: (query / "state" / "0" / "1" / "7.delta").unlink(), "7.delta is not there"),
        (
            lambda query: [
                shutil.copyfile(query / "offsets/6", query / f"offsets/{n}") for n in (7, 8)
            ],
            "batches 7 to 8 begun and not committed",
        ),
        (
            lambda query: (query / "offsets" / "6").write_text("v2\n{}\norders:1"),
            "offsets/6 begins with 'v2'",
        ),
        (
            lambda query: replace_in(query / "offsets" / "6", 'Policy":"min"', 'Policy":"max"'),
            "multipleWatermarkPolicy=max, which Spark keeps",
        ),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(
    query: Path, break_it: Callable[[Path], object], words: str
) -> None:
    break_it(query)

    with pytest.raises(RecoveryError, match=words):
        look(query)


def test_the_directory_that_was_meant_is_offered(query: Path) -> None:
    with pytest.raises(RecoveryError, match=r"perhaps .*hdfs-aggregation is meant"):
        look(query.parent)
    with pytest.raises(RecoveryError, match="not on this machine"):
        look(Path("s3://bucket/checkpoint"))


@pytest.mark.parametrize(
    ("totals", "words"),
    [
        (
            form(ExecutionMode.QUERY, stateful=False),
            "the step keeps no state, and .* stateStoreSave",
        ),
        (form(lines=(ORDERS, ORDERS)), "reads 2 outside streams .* the query read 1"),
        (
            form(lines=(Stream("orders", StreamKind.OUTSIDE, "kafka"),)),
            "position there is one of a file source",
        ),
        (form(lines=(Stream("orders", StreamKind.OWN, "sequence"),)), "of Cutwater's own"),
        (
            form(lines=(Stream("orders", StreamKind.OUTSIDE, "FileSource[/elsewhere]"),)),
            r"has read file:.*json: every file would count as new",
        ),
    ],
)
def test_a_query_that_does_not_fit_its_step_is_refused(
    query: Path, totals: AnalyzedStep, words: str
) -> None:
    with pytest.raises(AdoptionRefused, match=words):
        examined(query, totals=totals)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("totalz", "no such step; the steps are totals, one, two"),
        ("one", "one: runs as batches over channel totals"),
    ],
)
def test_a_step_that_cannot_go_on_with_a_query_is_refused(
    query: Path, step: str, words: str
) -> None:
    with pytest.raises(AdoptionRefused, match=words):
        examined(query, step)


def test_a_query_on_channels_cannot_go_on_with_a_plain_one(query: Path) -> None:
    channel_fed = {**forms(), StepId("two"): form(lines=(TOTALS,))}

    with pytest.raises(AdoptionRefused, match="reads channel totals, after a step with state"):
        examine(planned(), channel_fed, {"two": looked(query)}, allow_uncommitted=False)


def test_all_that_is_wrong_is_said_at_once(query: Path) -> None:
    plan_next_batch(query)
    first = looked(query)
    (query / "sources" / "0" / "9").touch()
    totals = form(stateful=False)

    with pytest.raises(AdoptionRefused) as caught:
        examine(planned(), forms(totals), {"totals": first, "x": first}, allow_uncommitted=False)

    text = str(caught.value)
    assert text.startswith("[CW-104] ")
    for words in (
        "x: there is no such step",
        "changed while it was looked at: its query still runs",
        "has batch 7 begun and not committed",
        "--allow-uncommitted",
        "keeps no state",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("spark", "mark", "refused"),
    [("4.0.5", "v2", False), ("4.1.4", "v2", True), ("4.3.0", "v2", True), ("4.3.0", "v1", False)],
)
def test_snapshots_that_a_later_spark_cannot_read_are_refused(
    tmp_path: Path, spark: str, mark: str, refused: bool
) -> None:
    query = unpacked("rocksdb-1-transformWithState", tmp_path)
    for snapshot in query.rglob("*.zip"):
        with ZipFile(snapshot) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        parts["metadata"] = mark.encode() + b"\n" + parts["metadata"].partition(b"\n")[2]
        with ZipFile(snapshot, "w") as archive:
            for name, data in parts.items():
                archive.writestr(name, data)
    operators = (OperatorIdentity("TransformWithStateInPySpark"),)
    totals = form(identity=StepIdentity(operators=operators, spark=spark))
    words = f"marked v2, which Spark {spark} cannot read"

    with pytest.raises(AdoptionRefused, match=words) if refused else nullcontext():
        examined(query, totals=totals)


def test_a_number_of_partitions_that_the_state_does_not_have_is_refused(query: Path) -> None:
    with pytest.raises(AdoptionRefused, match="its state has 2 partitions and keeps them; remove"):
        examine(planned(8), forms(), {"totals": looked(query)}, allow_uncommitted=False)


# -- what is stored


def test_the_first_cut_is_decided_like_any_other(query: Path) -> None:
    before, opened = trace(query), store()
    adoption = examined(query)

    decision = adopt(adoption, opened, TARGETS)

    claim, *entries = opened.log.read().entries
    assert isinstance(claim, Claim)
    assert entries == [decision]
    assert (decision.kind, decision.commit_point) == (CheckpointKind.SAVEPOINT, False)
    cut = opened.manifests.read(decision.checkpoint_id, decision.manifest_sha256)
    assert cut.name == "adopted"
    assert opened.attempts.highest() == cut.checkpoint_id == 1
    assert opened.targets.newest(opened.log.read()) == TARGETS
    totals = cut.snapshots[StepId("totals")]
    assert (totals.batch, totals.offsets) == (6, {"0:orders": '{"logOffset":6}'})
    assert {one: cut.snapshots[StepId(one)].batch for one in adoption.empty} == {
        "one": -1,
        "two": -1,
    }
    assert cut.visible == {"one": None, "two": None}
    assert set(cut.identities) == set(cut.snapshots)
    assert adoption.steps[0].notes == ()
    assert trace(query) == before


def test_the_copy_is_a_query_of_its_own(query: Path, tmp_path: Path) -> None:
    opened = store()
    lines = (ORDERS, PULSE)
    plan_next_batch(query)

    decision = adopt(examined(query, totals=form(lines=lines), rerun=True), opened, TARGETS)

    cut = opened.manifests.read(decision.checkpoint_id)
    opened.blobs(cut.generation).fetch_tree(cut.snapshots[StepId("totals")].state, tmp_path / "c")
    assert query_log.batches(tmp_path / "c", query_log.OFFSETS) == [5, 6]
    for batch in (5, 6):
        offsets = query_log.read_batch(tmp_path / "c", BatchId(batch)).offsets
        assert offsets == (f'{{"logOffset":{batch}}}', None)
    assert read_streams(tmp_path / "c") == lines
    ids = {json.loads((path / "metadata").read_text())["id"] for path in (query, tmp_path / "c")}
    assert len(ids) == 2


def test_a_pipeline_adopts_once_and_not_while_it_runs(query: Path) -> None:
    opened, adoption = store(), examined(query)
    leases = Leases(opened.backend, opened.pipeline)
    lease = Lease("elsewhere", 1, "n", 2**50)
    leases.beat(lease)
    with pytest.raises(PipelineHeld):
        adopt(adoption, opened, TARGETS)
    leases.release(lease)

    adopt(adoption, opened, TARGETS)

    with pytest.raises(AdoptionRefused, match="has checkpoints in this store already"):
        adopt(adoption, opened, TARGETS)
    assert len(opened.log.read().decisions) == 1


def test_an_adoption_is_fenced_by_a_concurrent_claim(query: Path) -> None:
    opened, adoption = store(), examined(query)
    publish = opened.manifests.publish

    def slow(cut: Cut) -> str:
        PipelineStore.of(opened.backend, opened.pipeline).log.create(
            Claim(Slot(2), Generation(2), "another")
        )
        return publish(cut)

    opened.manifests.publish = slow  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        adopt(adoption, opened, TARGETS)
    assert opened.log.read().decisions == ()


def test_a_query_that_runs_on_while_it_is_copied_is_refused(query: Path) -> None:
    adoption, opened = examined(query), store()
    os.utime(query / "metadata", (1, 1))

    with pytest.raises(AdoptionRefused, match="changed while it was copied"):
        adopt(adoption, opened, TARGETS)
    assert opened.log.read().decisions == ()
    # And again, once it has stopped.
    assert adopt(examined(query), opened, TARGETS).checkpoint_id == 2


# -- and out again


@dataclass
class World:
    """A pipeline in a store, with one decided cut."""

    opened: PipelineStore
    decision: Decision

    @property
    def cut(self) -> Cut:
        return self.opened.manifests.read(self.decision.checkpoint_id)

    def decide(self, cut: Cut, *, committed: bool = True) -> Decision:
        """Decide another cut, as a run would."""
        slot = Slot(self.opened.log.read().last_slot + 1)
        cut = replace(cut, checkpoint_id=self.cut.checkpoint_id + slot)  # type: ignore[arg-type]
        sha256 = self.opened.manifests.publish(cut)
        decision = replace(
            self.decision,
            slot=slot,
            nonce=f"n{slot}",
            kind=CheckpointKind.CHECKPOINT,
            checkpoint_id=cut.checkpoint_id,
            manifest_sha256=sha256,
            commit_point=cut.commit_point,
            origin=cut.origin,
        )
        self.opened.log.create(decision)
        if committed:
            self.opened.commits.record(Committed(slot, cut.checkpoint_id, {}))
        return decision


@pytest.fixture
def world(query: Path) -> World:
    opened = store()
    totals = form(lines=(ORDERS, PULSE))
    return World(opened, adopt(examined(query, totals=totals), opened, TARGETS))


def test_what_was_adopted_is_ejected_as_it_was(world: World, query: Path, tmp_path: Path) -> None:
    ejection = eject("adopting", world.opened, world.decision, tmp_path / "out")

    assert {step.step: step.ending for step in ejection.steps} == {
        "one": Ending.NOTHING,
        "totals": Ending.EXACT,
        "two": Ending.NOTHING,
    }
    out = tmp_path / "out" / "totals"
    for name in look(query).files:
        same = (out / name).read_bytes() == (query / name).read_bytes()
        assert same or name == "metadata", name
    there = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert there == set(look(query).files)
    listed = json.loads((tmp_path / "out" / "eject.json").read_text())
    assert listed["checkpoint"] == 1
    endings = {step["step"]: step["ending"] for step in listed["steps"]}
    assert endings["totals"] == "goes on exactly"
    readme = (tmp_path / "out" / "README.txt").read_text()
    assert "resumes at batch 7" in readme
    assert "source 0: orders (FileSource[/])" in readme
    assert str(out) in readme


def test_schemas_are_found_where_the_directory_will_be(tmp_path: Path) -> None:
    query = unpacked("rocksdb-1-transformWithState", tmp_path)
    opened = store()
    decision = adopt(examined(query), opened, TARGETS)

    eject("adopting", opened, decision, tmp_path / "out")

    out = tmp_path / "out" / "totals"
    (metadata,) = out.glob("state/0/_metadata/v2/*")
    (info,) = json.loads(metadata.read_text().partition("\n")[2])["stateStoreInfo"]
    (path,) = info["stateSchemaFilePaths"]
    assert path.startswith(f"file:{out}/state/0/_stateSchema/")
    assert Path(path.removeprefix("file:")).is_file()


def test_a_step_on_a_channel_keeps_its_state_and_has_no_offset(
    world: World, query: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(query, tmp_path / "copy"))
    note_streams(copy, (Stream("totals", StreamKind.CHANNEL),))
    state = stored_tree(world.opened.blobs(Generation(1)), copy, {})
    two = world.cut.snapshots[StepId("two")]
    two = replace(two, batch=BatchId(6), state=state)
    decision = world.decide(replace(world.cut, snapshots={**world.cut.snapshots, two.step: two}))

    older = eject("adopting", world.opened, world.decision, tmp_path / "older")
    assert older.warning.startswith(
        f"The pipeline has gone on to checkpoint {decision.checkpoint_id}"
    )
    ejection = eject("adopting", world.opened, decision, tmp_path / "out")
    assert not ejection.warning

    found = next(step for step in ejection.steps if step.step == "two")
    assert (found.ending, found.reads) == (Ending.STATE_ONLY, ("totals",))
    assert "reads that source from its beginning" in found.explanation
    for batch in (5, 6):
        assert query_log.read_batch(tmp_path / "out" / "two", BatchId(batch)).offsets == (None,)
    assert look(tmp_path / "out" / "two").operators


def test_what_retention_deletes_meanwhile_is_gone_and_not_damaged(
    world: World, tmp_path: Path
) -> None:
    opened, read = world.opened, world.opened.manifests.read
    paths = PipelinePaths(opened.pipeline)

    def read_late(checkpoint_id: CheckpointId, sha256: str | None = None) -> Cut:
        cut = read(checkpoint_id, sha256)
        for path in (*opened.backend.list(paths.blobs), *also):
            opened.backend.delete(path)
        return cut

    opened.manifests.read = read_late  # type: ignore[method-assign]
    also: tuple[ObjectPath, ...] = ()
    with pytest.raises(Corrupt):
        eject("adopting", opened, world.decision, tmp_path / "out")
    also = (paths.manifest(world.decision.checkpoint_id),)
    with pytest.raises(ConfigError, match="checkpoint 1 is no longer kept, and was deleted"):
        eject("adopting", opened, world.decision, tmp_path / "out")
    assert list(tmp_path.glob("*out*")) == []


def test_what_a_rewind_took_back_cannot_be_ejected(world: World, tmp_path: Path) -> None:
    """Its rows are out of the tables, and a plain query would go on after them."""
    undone = world.decide(world.cut)
    rewind = world.decide(replace(world.cut, origin=world.decision.slot))

    with pytest.raises(ConfigError, match="a rewind has restored the tables to before checkpoint"):
        eject("adopting", world.opened, undone, tmp_path / "undone")
    eject("adopting", world.opened, world.decision, tmp_path / "before")
    eject("adopting", world.opened, rewind, tmp_path / "rewind")


def test_rows_that_are_on_their_way_cannot_be_ejected(world: World, tmp_path: Path) -> None:
    staged = Committable(SinkId("one"), Generation(1), BatchId(0), 1, ())
    carrying = world.decide(replace(world.cut, carried={SinkId("one"): (staged,)}))
    waiting = world.decide(
        replace(world.cut, commit={SinkId("one"): (staged,)}, commit_point=True), committed=False
    )
    for decision, words in ((carrying, "take a savepoint"), (waiting, "run the pipeline once")):
        with pytest.raises(ConfigError, match=words):
            eject("adopting", world.opened, decision, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_is_filled_whole_or_not_at_all(world: World, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(ConfigError, match="is not an empty directory"):
        eject("adopting", world.opened, world.decision, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    eject("adopting", world.opened, world.decision, tmp_path / "empty")

    lost = world.cut.snapshots[StepId("totals")].state[0]
    world.opened.backend.delete(lost.name)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="missing"):
        eject("adopting", world.opened, world.decision, tmp_path / "out")

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"hdfs-aggregation", "full", "empty"}

"""The public contract of a sink notices every way to break it; here without Spark.

Each way is a sink of files with one thing done wrong. The whole sink must pass every test of the
contract, and each broken one must fail the test that is named with it.
"""

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.unit.sinks.files_sink import ArrowRows, ids_in

from cutwater.errors import Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import OpenSink, RestorePreview, Rows, Sink, SinkContext
from cutwater.sinks.files.table import OpenFiles
from cutwater.sinks.files.target import FilesTarget
from cutwater.sinks.staging.formats import Form
from cutwater.store.records.targets import StoredTarget
from cutwater.testing import SinkContract

NEEDS_SPARK = "test_staging_is_one_spark_action"
TESTS = sorted(name for name in vars(SinkContract) if name.startswith("test_"))
CHANCE = itertools.count()


class Files(OpenFiles):
    """The sink to be broken."""

    def __init__(self, root: Path, context: SinkContext) -> None:
        super().__init__(root, Form(), context, 100)
        self.root = root


class Target(FilesTarget):
    """Names the sink to be broken."""

    opens: ClassVar[type[Files]] = Files

    def open(self, context: SinkContext) -> OpenSink:
        return self.opens(Path(self.uri), context)


class Whole(SinkContract):
    names: ClassVar[type[Target]] = Target

    def target(self, directory: Path) -> Sink:
        return self.names(str(directory / "out"))

    def shown(self, directory: Path) -> list[int]:
        return ids_in(directory / "out")

    def rows(self, spark: object, ids: Sequence[int]) -> Rows:
        del spark
        return ArrowRows(tuple(ids))


# -- one thing done wrong


class ShowsAtOnce(Files):
    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        found = super().stage(rows, generation, batch)
        for blob in found.blobs[1:] if found else ():
            shutil.copy(self.root / blob.name, self.root / Path(blob.name).name)
        return found


class NamesTheWrongBatch(Files):
    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        return super().stage(rows, generation, BatchId(batch + 1))


class KeepsWhatFailed(Files):
    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        assert isinstance(rows, ArrowRows)
        old = self.__dict__.setdefault("old", {}).setdefault(batch, [])
        old += rows.ids
        return super().stage(ArrowRows(tuple(old)), generation, batch)


class StagesNothingAsSomething(Files):
    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        found = super().stage(rows, generation, batch)
        return found or Committable(SinkId("checked"), generation, batch, 0, ())


class TrustsItsFiles(Files):
    def problem(self, committable: Committable) -> str | None:
        del committable
        return None


class TrustsNothing(Files):
    def problem(self, committable: Committable) -> str | None:
        return f"{committable.batch} may be damaged"


class LooksAtSizesOnly(Files):
    def problem(self, committable: Committable) -> str | None:
        found = super().problem(committable)
        return None if found is None or "another content" in found else found


class ActsAgain(Files):
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        acted = any(backward.slot == permit.slot for backward in self._commits.backwards())
        for file in list(self.root.glob("part-*.parquet"))[:1] if acted else ():
            shutil.copy(file, self.root / f"part-{next(CHANCE)}.parquet")
        return super().commit(permit, committables)


class ForgetsItsVersion(Files):
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        return f"{super().commit(permit, committables)}.{next(CHANCE)}"


class CommitsTheLastBatchOnly(Files):
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        return super().commit(permit, committables[-1:])


class RefusesNothing(Files):
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        try:
            return super().commit(permit, committables)
        except Superseded as late:
            newer = grant(permit.pipeline, Slot(late.newer + 1), CheckpointId(1))
            return super().commit(newer, committables)


class CannotCommitNothing(Files):
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        return super().commit(permit, committables) if committables else str(next(CHANCE))


class StaysWhereItIs(Files):
    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        del version
        return super().restore(permit, str(self._commits.newest()))


class GoesBackAgain(Files):
    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        newest = max(
            [int(permit.slot), *(int(backward.slot) + 1 for backward in self._commits.backwards())]
        )
        return super().restore(grant(permit.pipeline, Slot(newest), CheckpointId(1)), version)


class GoesBackWhenAsked(Files):
    def look_back(self, version: Version | None) -> RestorePreview:
        found = super().look_back(version)
        newest = int(next(self._commits.backwards()).slot)
        super().restore(grant(self._pipeline, Slot(newest), CheckpointId(1)), version)
        for path in (self.root).glob("part-*"):
            path.unlink()
        return found


class DiscardsEverything(Files):
    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        del keep
        super().discard(generation, ())


class DiscardsItself(Files):
    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        super().discard(Generation(generation + 1), keep)


class GivesUpWhatItTakesBack(Files):
    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        restored = super().restore(permit, version)
        shutil.rmtree(self.root / "_cutwater" / "past", ignore_errors=True)
        return restored


class CallsGoneRowsSound(GivesUpWhatItTakesBack):
    def problem(self, committable: Committable) -> str | None:
        found = super().problem(committable)
        return None if found is None or "is missing" in found else found


class ClaimsToHoldEverything(Files):
    def newest(self) -> Found:
        return Found(Slot(9), super().newest().version)


class SaysDoneFirst(Files):
    """It notes that a slot is done before it is."""

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        note = self.root / "_cutwater" / f"done-{permit.slot}"
        if note.exists():
            return self._find_unchanged(permit.slot)
        note.write_text("")
        return super().commit(permit, committables)


class TakesAwayFirst(Files):
    """It deletes files before it has said that it goes back."""

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        live = self._commits.live(self._commits.newest())
        then = self._commits.live(int(version or 0))
        for staged, file in live.items():
            if staged not in then:
                (self.root / file.path).unlink(missing_ok=True)
        return super().restore(permit, version)


class ForgetfulTarget(Target):
    def stored(self) -> StoredTarget:
        return StoredTarget("parquet", f"{self.uri}/{next(CHANCE)}")


DEATHS = "test_a_process_killed_anywhere_loses_and_doubles_nothing"
BREAKS: dict[type, str] = {
    ShowsAtOnce: "test_staged_rows_are_invisible",
    NamesTheWrongBatch: "test_staged_rows_are_invisible",
    KeepsWhatFailed: "test_a_batch_that_is_staged_again_replaces_the_first",
    StagesNothingAsSomething: "test_a_batch_without_rows_changes_nothing",
    TrustsItsFiles: "test_staged_things_that_are_damaged_are_noticed",
    LooksAtSizesOnly: "test_staged_things_that_are_damaged_are_noticed",
    TrustsNothing: "test_another_process_commits_what_a_dead_one_staged",
    ActsAgain: "test_a_commit_that_is_repeated_changes_nothing",
    ForgetsItsVersion: "test_two_processes_that_act_at_once_act_once",
    CommitsTheLastBatchOnly: "test_one_commit_takes_several_batches",
    RefusesNothing: "test_an_older_slot_is_fenced_out",
    CannotCommitNothing: "test_a_commit_of_nothing_is_a_commit",
    StaysWhereItIs: "test_the_target_goes_back_to_a_version",
    GoesBackAgain: "test_the_target_goes_back_to_a_version",
    GoesBackWhenAsked: "test_the_target_goes_back_to_a_version",
    DiscardsEverything: "test_discarding_keeps_what_is_kept",
    DiscardsItself: "test_discarding_keeps_what_is_kept",
    GivesUpWhatItTakesBack: ("test_going_back_to_a_recovery_point_commits_what_it_carries_again"),
    ClaimsToHoldEverything: "test_a_target_that_lost_its_last_commit_is_noticed",
    CallsGoneRowsSound: "test_staged_rows_that_are_gone_are_not_called_sound",
    SaysDoneFirst: DEATHS,
    TakesAwayFirst: DEATHS,
}


def made(sink: type[Files]) -> type[Whole]:
    target = type(f"{sink.__name__}Target", (Target,), {"opens": sink, "__slots__": ()})
    return type(sink.__name__, (Whole,), {"names": target, "__module__": __name__})


BrokenSaysDoneFirst = made(SaysDoneFirst)
BrokenTakesAwayFirst = made(TakesAwayFirst)
# Another process finds them by these names.
BrokenSaysDoneFirst.__qualname__ = "BrokenSaysDoneFirst"
BrokenTakesAwayFirst.__qualname__ = "BrokenTakesAwayFirst"


def call(contract: SinkContract, name: str, directory: Path) -> None:
    test: Callable[..., Any] = getattr(contract, name)
    if name == "test_the_target_says_what_planning_needs":
        test(directory)
    else:
        test(None, directory)


@pytest.mark.parametrize("name", [name for name in TESTS if name != NEEDS_SPARK])
def test_a_whole_sink_passes_every_test(tmp_path: Path, name: str) -> None:
    call(Whole(), name, tmp_path)


@pytest.mark.parametrize("sink", [one for one in BREAKS if BREAKS[one] != DEATHS])
def test_a_broken_sink_fails_the_test_that_is_meant_for_it(
    tmp_path: Path, sink: type[Files]
) -> None:
    with pytest.raises(AssertionError):
        call(made(sink)(), BREAKS[sink], tmp_path)


@pytest.mark.parametrize("broken", [BrokenSaysDoneFirst, BrokenTakesAwayFirst])
def test_a_sink_that_loses_rows_when_it_dies_is_found_out(
    tmp_path: Path, broken: type[Whole]
) -> None:
    with pytest.raises(AssertionError, match=r"killed after|has a problem|failed in another"):
        call(broken(), DEATHS, tmp_path)


def test_a_target_that_never_says_the_same_is_found_out(tmp_path: Path) -> None:
    class Forgetful(Whole):
        names = ForgetfulTarget

    with pytest.raises(AssertionError, match="the same every time"):
        call(Forgetful(), "test_the_target_says_what_planning_needs", tmp_path)


def test_every_test_of_the_contract_has_a_sink_that_fails_it() -> None:
    planning = "test_the_target_says_what_planning_needs"
    assert {*BREAKS.values(), planning, NEEDS_SPARK} == set(TESTS)

"""The contract of a sink as tests: subclass `SinkContract`, and pytest checks your own sink.

    from cutwater.testing import SinkContract
    from cutwater.testing.fixtures import cutwater_spark

    class TestMySink(SinkContract):
        def target(self, directory):
            return MySink(directory / "rows.db")

        def shown(self, directory):
            return sorted(read_ids_without_my_sink(directory / "rows.db"))

Every test opens the sink as a generation does, on Spark, in its own directory. `shown` returns what
readers see, and must not use the sink. docs/how-to/write-a-sink.md has a complete example.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from cutwater.errors import SinkError
from cutwater.ids import Generation, Slot
from cutwater.protocol.cut import Version
from cutwater.protocol.lost_commit import Recorded, is_behind
from cutwater.sinks.base import FrameRows, KnowsNewest, Rows, Sink
from cutwater.store.backends.directories import remove_tree
from cutwater.testing.sink_contract.harness import (
    SINK,
    Trial,
    check,
    fails,
    file_of,
    jobs_of,
    patiently,
    permit,
    same,
    superseded,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SinkContract:
    """All that a pipeline expects of a sink. The attributes describe what differs.

    Attributes:
        overwrites: Whether each batch is a whole result that replaces the one before.
        restores: Whether the target can be restored to an earlier version.
        stages_files: Whether what is staged is files below the directory, named by their hash in
            the committable, which the tests may damage.
        lies_in_directory: Whether the whole target is below the directory, so that the tests can
            replace it by an older copy.
        commits_without_spark: Whether committing and restoring needs no Spark, as for `rewind`.
    """

    overwrites = False
    restores = True
    stages_files = True
    lies_in_directory = True
    commits_without_spark = True

    # -- what a subclass defines

    def target(self, directory: Path) -> Sink:
        """Name the target below a directory, which is empty at first."""
        raise NotImplementedError

    def shown(self, directory: Path) -> list[int]:
        """Return the ids that readers of the target see, sorted; [] if there is no target yet."""
        raise NotImplementedError

    def frame(self, spark: "SparkSession", ids: Sequence[int]) -> "DataFrame":
        """Return rows with these ids; give your sink the columns that it needs."""
        return spark.createDataFrame(
            [(number, f"row {number}") for number in ids], "id long, name string"
        )

    def rows(self, spark: "SparkSession | None", ids: Sequence[int]) -> Rows:
        """Return rows as a sink gets them; by default those of `frame`."""
        assert spark is not None
        return FrameRows(self.frame(spark, ids))

    def _after(self, *batches: Sequence[int]) -> list[int]:
        """Return what readers see after these committed batches."""
        counted = batches[-1:] if self.overwrites else batches
        return sorted(number for batch in counted for number in batch)

    # -- planning

    def test_the_target_says_what_planning_needs(self, tmp_path: Path) -> None:
        """Planning and the store use a target before it is opened."""
        target = self.target(tmp_path)
        check(isinstance(target, Sink), "the target lacks one of open, stored, format, accepts")
        modes = target.accepts
        check(modes and modes <= {"append", "update", "complete"}, f"accepts is {set(modes)}")
        check(target.format and target.describe(), "format and describe() must not be empty")
        stored = target.stored()
        check(stored == self.target(tmp_path).stored(), "stored() must say the same every time")
        texts = [text for values in stored.options.values() for text in values]
        check(
            all(isinstance(text, str) for text in (stored.format, stored.uri, *texts)),
            "stored() must hold texts only: it is written to the store",
        )

    # -- staging

    def test_staged_rows_are_invisible(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """Readers see no rows before their decision."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        (committable,) = trial.stage_batch(sink, 7, 1, 2, 3, generation=2)
        trial.shows([], "before the commit")
        found = (committable.sink, committable.generation, committable.batch, committable.rows)
        check(found == (SINK, 2, 7, 3), f"the committable says {found}")
        check(sink.problem(committable) is None, "something just staged has a problem")
        sink.commit(permit(3), (committable,))
        trial.shows([1, 2, 3], "after the commit")
        trial.stage(sink, 4)
        trial.shows([1, 2, 3], "while more is staged")

    def test_staging_is_one_spark_action(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A stateful step that is computed twice has two states (rule F32)."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink, context = trial.opened(), cutwater_spark.sparkContext
        group = f"contract {tmp_path}"
        context.setJobGroup(group, "staging")
        try:
            trial.stage(sink, 1, 2)
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        jobs = jobs_of(context, group)
        check(jobs == 1, f"staging ran {jobs} Spark jobs: a stateful step must be computed once")

    def test_a_batch_that_is_staged_again_replaces_the_first(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A failed batch is staged again."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        trial.stage_batch(sink, 0, 1, 2)
        again = trial.stage_batch(sink, 0, 3)
        sink.commit(permit(2), again)
        trial.shows([3], "after a batch was staged twice and committed")

    def test_a_batch_without_rows_changes_nothing(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """There is nothing to commit then."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        staged = trial.stage(sink)
        check(not staged or self.overwrites, "a batch without rows needs no committable")
        sink.commit(permit(1), staged)
        trial.shows([], "after a batch without rows")

    def test_staged_things_that_are_damaged_are_noticed(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """Recovery checks staged files before it repeats a commit."""
        if not self.stages_files:
            return
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        (committable,) = trial.stage(sink, 1, 2)
        check(committable.blobs, "a sink that stages files must name them in the committable")
        for blob in committable.blobs:
            path = file_of(blob, tmp_path)
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            check(sink.problem(committable), f"{blob.name} was changed and problem() says nothing")
            path.write_bytes(whole[:-1])
            check(sink.problem(committable), f"{blob.name} was cut and problem() says nothing")
            path.unlink()
            check(sink.problem(committable), f"{blob.name} was deleted and problem() says nothing")
            path.write_bytes(whole)
            check(trial.opened().problem(committable) is None, "what is whole again has a problem")

    # -- committing

    def test_a_commit_that_is_repeated_changes_nothing(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """After a crash before the record, every commit is repeated."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        first, second = trial.stage(sink, 1, 2), trial.stage(sink, 3)
        version = sink.commit(permit(4), first)
        same(version, sink.commit(permit(4), first))
        same(version, trial.opened().commit(permit(4), first))
        trial.shows([1, 2], "after a repeated commit")
        check(sink.problem(first[0]) is None, "what was committed and not recorded has a problem")
        newer = sink.commit(permit(7), second)
        same(version, trial.opened().commit(permit(4), first))
        same(newer, trial.opened().commit(permit(7), second))
        trial.shows(self._after([1, 2], [3]), "after the commit before the last was repeated")

    def test_one_commit_takes_several_batches(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """Between two checkpoints there are many batches."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        both = (*trial.stage(sink, 1, 2), *trial.stage(sink, 3))
        sink.commit(permit(4), both)
        trial.shows(self._after([1, 2], [3]), "after one commit of two batches")

    def test_a_commit_of_nothing_is_a_commit(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """Sinks commit together, also those without new rows."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        same(sink.commit(permit(1), ()), trial.opened().commit(permit(1), ()))
        trial.shows([], "after a commit of nothing")
        sink.commit(permit(2), trial.stage(sink, 1))
        for slot in (3, 4):
            same(sink.commit(permit(slot), ()), trial.opened().commit(permit(slot), ()))
        later = trial.stage(sink, 2)
        sink.commit(permit(6), later)
        trial.shows(self._after([1], [2]), "after commits with and without rows")

    def test_an_older_slot_is_fenced_out(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A process that was stopped and wakes up must not act any more."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        first, late, newest = (trial.stage(sink, number) for number in (1, 2, 3))
        version = sink.commit(permit(3), first)
        sink.commit(permit(8), newest)
        for opened in (sink, trial.opened()):
            superseded(opened.commit, permit(5), late)
            if self.restores:
                superseded(opened.restore, permit(6), version)
        trial.shows(self._after([1], [3]), "after an older slot was refused")

    def test_another_process_commits_what_a_dead_one_staged(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """The decision holds, whichever process carries it out."""
        trial = Trial(self, cutwater_spark, tmp_path)
        staged = trial.stage(trial.opened(), 1, 2)
        other = trial.opened(without_spark=self.commits_without_spark)
        check(other.problem(staged[0]) is None, "another process finds a problem")
        version = other.commit(permit(9), staged)
        same(version, trial.opened().commit(permit(9), staged))
        trial.shows([1, 2], "after another process has committed")

    def test_two_processes_that_act_at_once_act_once(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """The old process and the new one may commit at the same time."""
        trial = Trial(self, cutwater_spark, tmp_path)
        ids: list[list[int]] = []
        for slot in range(1, 5):
            ids.append([10 * slot, 10 * slot + 1])
            staged = trial.stage(trial.opened(), *ids[-1])
            both = (trial.opened(), trial.opened())
            with ThreadPoolExecutor(2) as pool:
                found = [pool.submit(patiently, sink, slot, staged) for sink in both]
                same(*(future.result() for future in found))
            trial.shows(self._after(*ids), "after two acted on one slot at once")

    def test_a_target_that_lost_its_last_commit_is_noticed(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A restored backup takes a target back without a decision (rule F43)."""
        trial = Trial(self, cutwater_spark, tmp_path / "target")
        trial.directory.mkdir()
        sink: object = trial.opened()
        if not isinstance(sink, KnowsNewest) or not self.lies_in_directory:
            return
        opened = trial.opened()
        version = opened.commit(permit(3), trial.stage(opened, 1))
        check(
            not is_behind(Recorded(Slot(3), version), sink.newest()),
            "a target that holds its last commit is said to lack it",
        )
        shutil.copytree(trial.directory, tmp_path / "backup")
        version = opened.commit(permit(4), trial.stage(opened, 2))
        last = Recorded(Slot(4), version)
        opened.commit(permit(5), ())
        check(not is_behind(last, sink.newest()), "a commit of nothing hides the last commit")
        remove_tree(trial.directory)
        (tmp_path / "backup").rename(trial.directory)
        trial.shows([1], "after a backup was restored")
        for found in (sink, trial.opened()):
            assert isinstance(found, KnowsNewest)
            check(is_behind(last, found.newest()), "a lost commit is not noticed by newest()")

    # -- restoring

    def test_the_target_goes_back_to_a_version(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A rewind takes all sinks back, or is refused."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        versions = [sink.commit(permit(slot), trial.stage(sink, slot)) for slot in (1, 2, 3)]
        whole = self._after([1], [2], [3])
        preview = sink.look_back(versions[0])
        trial.shows(whole, "after look_back, which changes nothing,")
        if not self.restores:
            check(preview.obstacle, "look_back must name the obstacle to a restore")
            fails(sink.restore, permit(4), versions[0])
            trial.shows(whole, "after a restore that was refused")
            return
        check(preview.obstacle is None, f"it cannot go back: {preview.obstacle}")
        check(preview.version == versions[-1], "look_back must say what the target shows now")
        restored = sink.restore(permit(4), versions[0])
        trial.shows([1], "after a restore")
        other = trial.opened(without_spark=self.commits_without_spark)
        same(restored, other.restore(permit(4), versions[0]))
        trial.shows([1], "after a repeated restore")
        sink.commit(permit(5), trial.stage(sink, 7))
        trial.shows(self._after([1], [7]), "after a commit that follows a restore")
        same(restored, trial.opened().restore(permit(4), versions[0]))
        trial.shows(self._after([1], [7]), "after a restore was repeated late")
        if sink.look_back(versions[1]).obstacle is None:
            sink.restore(permit(6), versions[1])
            trial.shows(self._after([1], [2]), "after going forward again")
        sink.restore(permit(9), None)
        trial.shows([], "after going back to the beginning")

    # -- tidying up

    def test_discarding_keeps_what_is_kept(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """What died with its generation is deleted, and nothing else."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        committed, kept = trial.stage(sink, 1), trial.stage(sink, 2)
        trial.stage(sink, 3)
        sink.commit(permit(1), committed)
        own = trial.stage(sink, 4, generation=2)
        trial.opened().discard(Generation(2), kept)
        trial.shows([1], "after uncommitted rows were deleted")
        for what, staged in (("is kept", kept), ("the running generation staged", own)):
            check(sink.problem(staged[0]) is None, f"discard has deleted what {what}")
        sink.commit(permit(2), kept)
        sink.commit(permit(3), own)
        trial.shows(self._after([1], [2], [4]), "after the rest was committed")
        trial.opened().discard(Generation(9), ())
        trial.shows(self._after([1], [2], [4]), "after everything else was deleted")

    # -- recovery points

    def test_going_back_to_a_recovery_point_commits_what_it_carries_again(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """A later checkpoint has committed the same rows; a rewind undoes that and repeats it."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        shown = sink.commit(permit(1), trial.stage(sink, 1))
        carried, later = trial.stage(sink, 2), trial.stage(sink, 3)
        trial.retain(sink, 1, {None, shown}, carried)
        sink.commit(permit(3), (*carried, *later))
        sink.commit(permit(4), trial.stage(sink, 4))
        trial.retain(sink, 1, {None, shown}, carried)
        restarted = trial.opened()
        restarted.discard(Generation(2), carried)
        trial.retain(restarted, 2, {None, shown}, carried)
        trial.shows(self._after([1], [2], [3], [4]), "while a recovery point is kept")
        check(sink.problem(carried[0]) is None, "what a kept recovery point carries has a problem")
        if not self.restores:
            return
        other = trial.opened(without_spark=self.commits_without_spark)
        check(other.problem(carried[0]) is None, "another process finds a problem with it")
        other.restore(permit(6), shown)
        trial.shows([1], "after going back to a recovery point")
        resumed = trial.opened()
        resumed.discard(Generation(4), carried)
        trial.retain(resumed, 4, {None, shown}, carried)
        check(resumed.problem(carried[0]) is None, "what is carried has a problem after a rewind")
        again = (*carried, *trial.stage(resumed, 5, generation=4))
        same(resumed.commit(permit(8), again), trial.opened().commit(permit(8), again))
        trial.shows(self._after([1], [2], [5]), "after what was carried was committed again")

    def test_staged_rows_that_are_gone_are_not_called_sound(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """Rows that no kept checkpoint carries may be deleted; a rewind must then report it."""
        trial = Trial(self, cutwater_spark, tmp_path)
        sink = trial.opened()
        shown = sink.commit(permit(1), trial.stage(sink, 1))
        carried = trial.stage(sink, 2)
        newer = sink.commit(permit(3), (*carried, *trial.stage(sink, 3)))
        trial.retain(sink, 1, {newer}, ())
        restarted = trial.opened()
        restarted.discard(Generation(2), ())
        trial.retain(restarted, 2, {newer}, ())
        trial.shows(self._after([1], [2], [3]), "after staged rows were given up")
        if not self.restores or sink.problem(carried[0]) or sink.look_back(shown).obstacle:
            return
        sink.restore(permit(4), shown)
        message = "problem() found nothing wrong, but after a rewind the rows were lost"
        try:
            sink.commit(permit(5), carried)
        except SinkError as error:
            raise AssertionError(message) from error
        trial.shows(self._after([1], [2]), f"{message}:")

    # -- sudden death

    def test_a_process_killed_anywhere_loses_and_doubles_nothing(
        self, cutwater_spark: "SparkSession", tmp_path: Path
    ) -> None:
        """SIGKILL between any two lines of the sink, in commits and in restores."""
        if not self.commits_without_spark:
            return
        from cutwater.testing.sink_contract.crash import Deaths  # noqa: PLC0415 - starts a process

        trial = Trial(self, cutwater_spark, tmp_path)
        ids: list[list[int]] = []
        version: Version = ""
        with Deaths(type(self), tmp_path) as deaths:
            for slot, part in enumerate((None, *deaths.parts), start=1):
                ids.append([10 * slot, 10 * slot + 1])
                staged = trial.stage(trial.opened(), *ids[-1])
                deaths.commit(slot, staged, part)
                check(trial.opened().problem(staged[0]) is None, "after a kill it has a problem")
                version = trial.opened().commit(permit(slot), staged)
                same(version, trial.opened().commit(permit(slot), staged))
                trial.shows(self._after(*ids), f"killed after {part} of the commit")
            if not self.restores:
                return
            goal = self._after(*ids)
            for slot, part in enumerate((None, *deaths.parts), start=100):
                sink = trial.opened()
                sink.commit(permit(2 * slot), trial.stage(sink, 5000 + slot))
                deaths.restore(2 * slot + 1, version, part)
                restored = trial.opened().restore(permit(2 * slot + 1), version)
                same(restored, trial.opened().restore(permit(2 * slot + 1), version))
                trial.shows(goal, f"killed after {part} of the restore")

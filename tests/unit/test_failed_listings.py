"""A directory that cannot be listed is an error, never an empty directory.

Each case fills a directory and then lets the listing fail for real: no file descriptor is left.
On Python 3.13 `Path.glob` would find nothing there.
"""

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType
from tests.descriptors import Descriptors, contents, descriptors, fail_next_listing
from tests.unit.sinks.files_sink import PIPELINE, SINK, ArrowRows, open_sink, permit, stage_rows

from cutwater.errors import CutwaterError, SinkError
from cutwater.ids import BatchId, ChannelId, Generation, Slot
from cutwater.operations.migration.plain_query import trace
from cutwater.protocol.channel_log import Bound, ChannelLog
from cutwater.runtime.channel import Channel, ChannelSchema
from cutwater.runtime.channel_file import read_entries
from cutwater.runtime.output import ChannelOutput
from cutwater.runtime.scratch import Scratch, clear, new_blob_cache
from cutwater.sinks.base import SinkContext
from cutwater.sinks.console import OpenConsole
from cutwater.sinks.delta.storage import LocalStaging, LocalStorage
from cutwater.sinks.files.manifests import FileCommits
from cutwater.sinks.foreach_batch import foreach_batch
from cutwater.sinks.staging.formats import Form, StagedOutput
from cutwater.sinks.staging.parquet import StagedFiles
from cutwater.spark.checkpoint_dir.files import settle
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.blobs.blobs import Blobs

PLACE = (Generation(1), BatchId(0))


@pytest.fixture
def taken() -> Iterator[Descriptors]:
    with descriptors() as made:
        yield made


@dataclass(frozen=True)
class UnlistedRows(ArrowRows):
    """Rows whose files cannot be listed when they have been written, and can a moment later."""

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        written = super().write_parquet(directory, options, partition_by)
        fail_next_listing()
        return written


ROWS = UnlistedRows((1, 2, 3))


def channel_in(directory: Path) -> Channel:
    form = ChannelSchema(StructType())
    return Channel(ChannelLog(ChannelId("a"), {}), directory, form, Bound(9, 9**9), lambda _: None)


def fails_for_lack_of_descriptors(act: Callable[[], object]) -> None:
    with pytest.raises((OSError, CutwaterError)) as raised:
        act()
    error = raised.value
    cause = error if isinstance(error, OSError) else error.__cause__
    assert isinstance(cause, OSError), error
    assert cause.errno == errno.EMFILE


# -- rows that were written


def test_rows_of_a_channel_are_not_lost(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "channel")

    fails_for_lack_of_descriptors(lambda: ChannelOutput(channel).write(ROWS, BatchId(0)))

    assert len(contents(channel.data)) == 3


def test_staged_rows_of_a_delta_table_are_not_lost(tmp_path: Path) -> None:
    staging = StagedFiles(tmp_path, PIPELINE, SINK)

    fails_for_lack_of_descriptors(lambda: staging.write(ROWS, PLACE, ()))

    assert len(contents(tmp_path)) == 3


def test_staged_rows_of_a_directory_of_files_are_not_lost(tmp_path: Path) -> None:
    staging = StagedOutput(tmp_path, PIPELINE, SINK)

    fails_for_lack_of_descriptors(lambda: staging.stage(ROWS, PLACE, Form()))

    assert len(contents(tmp_path)) == 3


def test_rows_for_the_console_are_not_lost() -> None:
    console = OpenConsole(SinkContext(None, PIPELINE, SINK), 10)

    fails_for_lack_of_descriptors(lambda: console.stage(ROWS, *PLACE))


# -- state


def test_a_snapshot_is_not_stored_without_its_files(tmp_path: Path, taken: Descriptors) -> None:
    blobs = Blobs(MemoryBackend(), PIPELINE, Generation(1))
    (tmp_path / "pin").mkdir()
    (tmp_path / "pin" / "metadata").write_text("{}")
    taken.take()

    fails_for_lack_of_descriptors(lambda: blobs.store_tree(tmp_path / "pin", ["metadata"], {}))


def test_a_restored_query_is_not_left_with_the_old_paths(
    tmp_path: Path, taken: Descriptors
) -> None:
    described = tmp_path / "state" / "0" / "_metadata" / "v2" / "3"
    described.parent.mkdir(parents=True)
    described.write_text('v2\n{"stateStoreInfo":[]}')
    taken.take()

    fails_for_lack_of_descriptors(lambda: settle(tmp_path))


def test_a_query_that_runs_is_not_taken_for_one_that_stands_still(
    tmp_path: Path, taken: Descriptors
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    taken.take()

    fails_for_lack_of_descriptors(lambda: trace(tmp_path))


def test_a_channels_log_is_not_read_as_empty(tmp_path: Path, taken: Descriptors) -> None:
    (tmp_path / "00000000.log").write_bytes(b"")
    taken.take()

    fails_for_lack_of_descriptors(lambda: read_entries(tmp_path))


# -- what was committed


def test_a_delta_table_is_not_taken_for_a_new_one(tmp_path: Path, taken: Descriptors) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{}")
    taken.take()

    fails_for_lack_of_descriptors(LocalStorage(tmp_path).has_log)
    fails_for_lack_of_descriptors(LocalStorage(tmp_path).entries)


def test_a_directory_of_files_is_not_taken_for_a_new_one(
    tmp_path: Path, taken: Descriptors
) -> None:
    sink = open_sink(tmp_path)
    sink.commit(permit(1), stage_rows(sink, 0, 1, 2))
    # Version 1 is gone, as it may be in a directory of ten thousand versions.
    (first,) = FileCommits(tmp_path).directory.iterdir()
    first.rename(first.with_name(f"{7:020d}.json"))
    taken.take()

    fails_for_lack_of_descriptors(FileCommits(tmp_path).newest)


def test_what_a_function_was_handed_is_not_forgotten(tmp_path: Path, taken: Descriptors) -> None:
    target = foreach_batch(lambda *_: None, staging=str(tmp_path))
    sink = target.open(SinkContext(None, PIPELINE, SINK))
    sink._note(Slot(1), "commit", [[1, 0]])  # type: ignore[attr-defined]
    taken.take()

    fails_for_lack_of_descriptors(lambda: sink.look_back(None))


def test_what_is_to_be_deleted_is_not_passed_over(tmp_path: Path, taken: Descriptors) -> None:
    sink, staging = open_sink(tmp_path / "files"), LocalStaging(tmp_path / "table", PIPELINE, SINK)
    stage_rows(sink, 0, 1, 2)
    taken.take()

    with pytest.raises(SinkError, match="cannot discard"):
        sink.discard(Generation(2), ())
    taken.give_back()
    assert len(contents(tmp_path / "files")) == 3
    staging.base.mkdir(parents=True)
    taken.take()
    fails_for_lack_of_descriptors(lambda: staging.clear_spools("copies-mine"))


# -- what others have left


def test_what_a_dead_process_left_is_not_passed_over(tmp_path: Path, taken: Descriptors) -> None:
    scratch = Scratch.make(tmp_path, PIPELINE, shared=False)
    with scratch.lock:
        taken.take()

        fails_for_lack_of_descriptors(lambda: new_blob_cache(scratch.path))
        fails_for_lack_of_descriptors(lambda: clear(scratch.path, Generation(1)))


# -- too few rows


@dataclass(frozen=True)
class MoreRows(ArrowRows):
    """Rows of which one file is lost between its writer and its reader."""

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        written = super().write_parquet(directory, options, partition_by)
        lost = Path(directory.removeprefix("file://")) / f"part-{self.ids[-1]:05d}-c000.parquet"
        lost.unlink()
        return written


def test_a_lost_file_of_a_channel_is_noticed_by_its_rows(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "channel")

    with pytest.raises(CutwaterError, match=r"3 rows .* 2 "):
        ChannelOutput(channel).write(MoreRows((1, 2, 3)), BatchId(0))


def test_a_lost_file_of_a_sink_is_noticed_by_its_rows(tmp_path: Path) -> None:
    delta = StagedFiles(tmp_path / "delta", PIPELINE, SINK)
    files = StagedOutput(tmp_path / "files", PIPELINE, SINK)
    console = OpenConsole(SinkContext(None, PIPELINE, SINK), 10)

    with pytest.raises(SinkError, match=r"3 rows .* 2 "):
        delta.write(MoreRows((1, 2, 3)), PLACE, ())
    with pytest.raises(SinkError, match=r"3 rows .* 2 "):
        files.stage(MoreRows((1, 2, 3)), PLACE, Form())
    with pytest.raises(SinkError, match=r"3 rows .* 2 "):
        console.stage(MoreRows((1, 2, 3)), *PLACE)


def test_what_a_failed_batch_left_in_a_channel_is_not_counted_twice(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "channel")
    left = channel.data / "b000000000000" / "part-00009-c000.parquet"
    left.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [9]}), left)

    written = ChannelOutput(channel).write(ArrowRows((1, 2, 3)), BatchId(0))

    assert written.rows == 3

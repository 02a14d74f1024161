"""The list of checkpoints: read once, kept, and brought up to date by what is new alone."""

import time

import pytest
from tests.unit.store.checkpoint_writer import CheckpointWriter, attempt_report
from tests.unit.store.cuts import PIPELINE

from cutwater.errors import Unavailable
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath
from cutwater.store.pipeline_store import PipelineStore
from cutwater.views import history as history_module
from cutwater.views.history import History


class Counting(MemoryBackend):
    """Counts what is read, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.is_away = False

    def read(self, path: ObjectPath) -> bytes:
        if self.is_away:
            raise Unavailable(path, "it is away")
        self.reads.append(path)
        return super().read(path)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Counting:
    # Every call looks: tests need not wait for a second to pass.
    monkeypatch.setattr(history_module, "_EVERY_S", 0.0)
    return Counting()


def history_of(backend: Counting) -> History:
    return History(PipelineStore.of(backend, PIPELINE), lambda: False)


def complete(writer: CheckpointWriter, *numbers: int) -> None:
    for number in numbers:
        writer.decide(number)
        writer.store.reports.write(attempt_report(number))


def test_what_is_over_is_read_once(backend: Counting) -> None:
    writer = CheckpointWriter(backend)
    complete(writer, *range(1, 31))
    history = history_of(backend)
    first = history.read()
    backend.reads.clear()

    second = history.read()
    read_again = list(backend.reads)
    complete(writer, 31)
    third = history.read()

    assert [checkpoint.id for checkpoint in first.checkpoints] == list(range(30, 0, -1))
    assert first.complete
    assert second == first
    assert [text for text in read_again if "/manifests/" in text or "/reports/" in text] == []
    assert third.version == first.version + 1
    assert [checkpoint.id for checkpoint in third.checkpoints[:2]] == [31, 30]
    assert [checkpoint.is_current for checkpoint in third.checkpoints[:2]] == [True, False]
    assert sum("/manifests/" in read for read in backend.reads) == 1


def test_a_report_or_a_commit_that_comes_late_is_seen(backend: Counting) -> None:
    writer = CheckpointWriter(backend)
    writer.decide(1, commit=False)
    history = history_of(backend)

    before = history.read().checkpoints[0]
    writer.store.reports.write(attempt_report(1))
    after = history.read().checkpoints[0]

    assert (before.end_to_end_duration, after.end_to_end_duration) == (None, 250)


def test_what_is_deleted_since_is_shown_as_discarded(backend: Counting) -> None:
    writer = CheckpointWriter(backend)
    complete(writer, 1, 2)
    history = history_of(backend)
    assert history.read().checkpoints[1].external_path is not None

    backend.delete(writer.paths.manifest(CheckpointId(1)))
    gone = history.read().checkpoints[1]

    assert (gone.discarded, gone.external_path, gone.state_size) == (True, None, 15)


def test_the_list_is_bounded_and_old_savepoints_stay_in_it(
    backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "LISTED_MAX", 3)
    writer = CheckpointWriter(backend)
    writer.decide(1, CheckpointKind.SAVEPOINT, name="kept")
    complete(writer, *range(2, 9))
    history = history_of(backend)

    assert [checkpoint.id for checkpoint in history.read().checkpoints] == [8, 7, 6, 1]
    complete(writer, 9)
    assert [checkpoint.id for checkpoint in history.read().checkpoints] == [9, 8, 7, 1]


def test_a_slow_store_shows_the_newest_first_and_the_rest_later(
    backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(history_module, "_CHUNK", 4)
    writer = CheckpointWriter(backend)
    complete(writer, *range(1, 11))
    history = history_of(backend)

    first, second, third = (history.read() for _ in range(3))

    assert [checkpoint.id for checkpoint in first.checkpoints] == [10, 9, 8, 7]
    assert (first.complete, second.complete, third.complete) == (False, False, True)
    assert len(third.checkpoints) == 10


def test_a_store_that_is_away_is_an_error_and_found_again(backend: Counting) -> None:
    writer = CheckpointWriter(backend)
    complete(writer, 1)
    history = history_of(backend)
    backend.is_away = True
    with pytest.raises(Unavailable):
        history.read()

    backend.is_away = False

    assert len(history.read().checkpoints) == 1


def test_five_hundred_checkpoints_are_listed_quickly_once_they_are_known(
    backend: Counting,
) -> None:
    writer = CheckpointWriter(backend)
    complete(writer, *range(1, 501))
    history = history_of(backend)
    while not history.read().complete:
        pass

    began_s = time.monotonic()
    again = history.read()

    # Ten milliseconds on a quiet machine; the bound is for a very busy one.
    assert time.monotonic() - began_s < 2
    assert len(again.checkpoints) == 500

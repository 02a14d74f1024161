"""Finding the checkpoint whose state is asked for, and the step in it; no Spark is started."""

from pathlib import Path

import pytest
from tests.unit.store.checkpoint_writer import CheckpointWriter

from cutwater.errors import ConfigError, Corrupt
from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.step_state.frame import cut_at
from cutwater.step_state.reading import fetch_state
from cutwater.store.backends.memory import MemoryBackend


@pytest.fixture
def writer() -> CheckpointWriter:
    found = CheckpointWriter(MemoryBackend())
    found.decide(1)
    found.decide(2, CheckpointKind.SAVEPOINT, name="before")
    found.decide(4)
    return found


@pytest.mark.parametrize(("text", "number"), [("latest", 4), ("1", 1), ("before", 2), ("2", 2)])
def test_a_checkpoint_is_named_as_everywhere(
    writer: CheckpointWriter, text: str, number: int
) -> None:
    assert cut_at(writer.store, text).checkpoint_id == number


def test_what_is_not_there_is_an_error_with_the_option_that_named_it(
    writer: CheckpointWriter,
) -> None:
    with pytest.raises(ConfigError, match=r"--from: checkpoint 3 is not there; there are .* 1, 2"):
        cut_at(writer.store, "3", "--from")
    with pytest.raises(ConfigError, match="the pipeline has no checkpoint yet"):
        cut_at(CheckpointWriter(MemoryBackend()).store, "latest")


def test_a_damaged_manifest_is_named(writer: CheckpointWriter) -> None:
    path = writer.paths.manifest(CheckpointId(1))
    writer.backend.put(path, b"not what was written")

    with pytest.raises(Corrupt, match=path):
        cut_at(writer.store, "1")


def test_a_step_that_is_not_there_is_answered_with_those_that_are(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    cut = cut_at(writer.store, "latest")

    with pytest.raises(ConfigError, match="checkpoint 4 has no step x; it has orders, totals"):
        fetch_state(writer.store, cut, "x", tmp_path / "query")
    assert not (tmp_path / "query").exists()

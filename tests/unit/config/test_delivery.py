"""When a sink's rows may be seen: the options as a user writes them, and what a pipeline does."""

import pytest

from cutwater import sinks
from cutwater.config.delivery import delivery, delivery_of, with_commit_interval
from cutwater.errors import ConfigError
from cutwater.protocol.options import CheckpointOptions, CommitOptions


def test_the_most_patient_sink_decides_for_all() -> None:
    """Sinks are committed together, or their tables would disagree (docs/adr/0020)."""
    targets = [sinks.delta("a"), sinks.delta("b", commit_every="1m"), sinks.delta("c"), object()]

    assert with_commit_interval(CheckpointOptions(), targets).commit == CommitOptions(
        every_ms=60_000
    )
    assert with_commit_interval(CheckpointOptions(), targets[:1]).commit.every_ms == 0
    assert with_commit_interval(CheckpointOptions(), ()).commit.every_ms == 0


def test_a_target_that_says_nothing_is_committed_at_every_checkpoint() -> None:
    assert delivery_of(object()) == delivery()


@pytest.mark.parametrize("text", ["0s", "often", "5"])
def test_a_pause_between_commits_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="commit_every"):
        delivery(text)


def test_the_store_remembers_which_sinks_show_batches() -> None:
    """A table may have to be rolled back by a process without the pipeline's file (rule F33)."""
    shows = sinks.delta("a", visibility="batch", commit_every="1m")

    assert delivery_of(shows) == delivery("1m", "batch")
    assert shows.stored().shows_batches
    assert not sinks.delta("a").stored().shows_batches
    assert "visibility" not in sinks.delta("a").stored().options


def test_a_visibility_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither 'checkpoint' nor 'batch'"):
        delivery(visibility="always")

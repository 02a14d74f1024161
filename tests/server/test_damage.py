"""A store with pipelines that cannot be read: the others are shown as ever, those by name."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from tests.server.api_client import ApiClient
from tests.server.sparkless_run import SparklessRun
from tests.server.test_metrics import scraped

from cutwater.store.paths import PipelinePaths, label, name
from cutwater.store.records.catalog import open_pipeline


def damage_log(root: Path, pipeline: str) -> None:
    path = root / PipelinePaths(pipeline).log_entries  # type: ignore[arg-type]
    path.mkdir(parents=True)
    (path / "000000000001").write_bytes(b"no decision")


def damage_name(root: Path, pipeline: str) -> None:  # noqa: ARG001
    (root / name("broken")).write_bytes(b"no name")


def damage_label(root: Path, pipeline: str) -> None:
    """Damage the record of a name, and delete the name."""
    (root / name("broken")).unlink()
    (root / label(pipeline)).write_bytes(b"no label")  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [damage_log, damage_name, damage_label])
def test_one_damaged_pipeline_hides_no_other(
    stopped: ApiClient, running: SparklessRun, damage: Callable[[Path, str], None]
) -> None:
    running.stored.writer.decide(1)
    broken = open_pipeline(running.stored.backend, "broken", uuid4)
    damage(running.stored.directory, broken)

    jobs = {job["name"]: job for job in stopped.json("/jobs/overview")["jobs"]}
    metrics = scraped(stopped)

    assert jobs.keys() in ({"orders", "broken"}, {"orders", broken})
    assert jobs.pop("orders")["state"] == "NOT_RUNNING"
    ((shown, job),) = jobs.items()
    assert (job["state"], job["can_change"]) == ("UNREADABLE", False)
    assert job["detail"]
    assert metrics["cutwater_pipeline_unreadable", shown] == 1
    assert metrics["cutwater_pipeline_unreadable", "orders"] == 0
    assert metrics["cutwater_checkpoint_last_id", "orders"] == 1
    assert ("cutwater_pipeline_up", shown) not in metrics
    # Either is found by what the list calls it, and the damaged one says what is wrong with it.
    assert stopped.json(f"/jobs/{running.stored.writer.store.pipeline}")["name"] == "orders"
    assert stopped.refusal(f"/jobs/{job['jid']}/checkpoints", 503)
    assert stopped.refusal("/jobs/nothing", 404)

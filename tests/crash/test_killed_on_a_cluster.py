"""Executors in processes of their own, as on a cluster, and a driver that is killed above them.

Spark's `local-cluster` starts a master and two workers inside the driver's process; a standalone
cluster outlives the driver. Executors share the file system with the driver, but not its memory.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.drivers import Drivers
from tests.crash.test_killed_drivers import check_diamond, diamond
from tests.servers.spark_cluster import standalone_cluster

INSIDE = "local-cluster[2,1,1024]"


@pytest.fixture(params=["inside the driver", "standalone"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drivers]:
    directory = tmp_path_factory.mktemp("cluster")
    if request.param == "standalone":
        (directory / "nodes").mkdir()
        with standalone_cluster(directory / "nodes") as master:
            yield from _drivers(directory, master)
    else:
        yield from _drivers(directory, INSIDE)


def _drivers(directory: Path, master: str) -> Iterator[Drivers]:
    found = Drivers(directory, master)
    yield found
    found.close()


@pytest.mark.long
def test_a_diamond_on_a_cluster_survives_its_drivers(cluster: Drivers, tmp_path: Path) -> None:
    patient = diamond(cluster, tmp_path, alignment_timeout="300ms")

    patient.dies_after("checkpoint", random.Random(1), 0.0)
    overtaken = patient.dies_at("unaligned decision")
    total = patient.finish()

    assert overtaken.cuts[-1].in_flight_bytes > 0
    check_diamond(tmp_path, total)

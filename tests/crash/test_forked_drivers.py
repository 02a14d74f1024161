"""Every checkpoint that is kept restores, in any order, twice at once in two processes."""

import random
from pathlib import Path

import pytest
from tests.crash.drivers import Drivers, Task
from tests.spark.forks import ALL, FORCED, NAME, TwoForks, parameters, points, rows_of


@pytest.mark.long
def test_every_checkpoint_restores_twice_at_once_in_two_processes(
    drivers: Drivers, tmp_path: Path
) -> None:
    first = drivers.take()
    given = parameters(tmp_path / "table", quick=False)
    first.run(Task(NAME, str(tmp_path), given, FORCED))
    first.finish()
    found = points(tmp_path)
    assert len(found) >= 4
    assert any(point.in_flight_bytes and point.shown for point in found)

    for point in random.Random(4).sample(found, len(found)):
        forks = TwoForks(tmp_path, point)
        running = []
        for name, table in forks.make():
            driver = drivers.take()
            given = parameters(table, quick=True)
            driver.run(Task(NAME, str(tmp_path), given, FORCED, name=name))
            running.append(driver)
        assert running[0].id != running[1].id
        for driver in running:
            driver.finish()
        forks.check()
    assert rows_of(tmp_path / "table") == ALL

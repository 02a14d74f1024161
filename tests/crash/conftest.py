"""Drivers for the tests of this directory, all of them killed in the end."""

from collections.abc import Iterator

import pytest
from tests.crash.drivers import Drivers


@pytest.fixture(scope="session")
def all_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    found = Drivers(tmp_path_factory.mktemp("drivers"))
    yield found
    found.close()


@pytest.fixture
def drivers(all_drivers: Drivers) -> Iterator[Drivers]:
    yield all_drivers
    all_drivers.sweep()

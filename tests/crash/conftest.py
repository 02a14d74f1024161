"""Drivers for the tests of this directory, all of them killed in the end."""

from collections.abc import Iterator

import pytest
from tests.crash.drivers import Drivers


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    found = Drivers(tmp_path_factory.mktemp("drivers"))
    yield found
    found.close()

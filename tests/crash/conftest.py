"""Drivers for the tests of this directory, all of them killed in the end; a PostgreSQL server."""

from collections.abc import Iterator

import pytest
from tests.crash.drivers import Drivers
from tests.servers.postgres import Database, PostgresServer, postgres_server


@pytest.fixture(scope="session")
def all_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    found = Drivers(tmp_path_factory.mktemp("drivers"))
    yield found
    found.close()


@pytest.fixture
def drivers(all_drivers: Drivers) -> Iterator[Drivers]:
    yield all_drivers
    all_drivers.sweep()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Database:
    return postgres.make_database(request.node.name)

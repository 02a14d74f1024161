"""Shared suites fail with the values of their assertions, as tests in test files do."""

from collections.abc import Iterator

import pytest
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.s3 import S3Server, s3_server

pytest.register_assert_rewrite("tests.contract.store_contract")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server, one for all tests; each takes a prefix of its own."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, one for all tests; each takes a database of its own."""
    with postgres_server() as server:
        yield server

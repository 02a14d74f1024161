"""One Spark session for all tests of this directory, with the settings a pipeline runs with.

And one PostgreSQL server, for those that write to it.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.servers.postgres import PostgresServer, postgres_server

from cutwater.spark.session.session import embedded_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = embedded_session("local[2]", app_name="cutwater-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cutwater_spark(spark: SparkSession) -> SparkSession:
    """The name by which a user's tests know the session."""
    return spark


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server

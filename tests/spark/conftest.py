"""One Spark session for all tests of this directory, with the settings a pipeline runs with.

And one PostgreSQL server and one Kafka broker, for those that use them. The session has Spark's
Kafka connector where Maven can fetch it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.servers.jars import JarsUnavailable, connector_jars
from tests.servers.kafka import KafkaCluster, kafka_cluster
from tests.servers.postgres import PostgresServer, postgres_server
from tests.spark.declarative_files import ProjectFiles

from cutwater.spark.session.session import embedded_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = embedded_session("local[2]", app_name="cutwater-tests", conf=_connector())
    yield session
    session.stop()


def _connector() -> dict[str, str]:
    try:
        return {"spark.jars": ",".join(map(str, connector_jars()))}
    except JarsUnavailable:
        # The tests on a broker are skipped by its fixture.
        return {}


@pytest.fixture(scope="session")
def cutwater_spark(spark: SparkSession) -> SparkSession:
    """The name by which a user's tests know the session."""
    return spark


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Iterator[ProjectFiles]:
    """A declarative project with a table of orders, in a database of its own."""
    spark.sql(f"CREATE DATABASE shop LOCATION '{tmp_path / 'shop'}'")
    yield ProjectFiles(tmp_path, spark)
    spark.catalog.setCurrentDatabase("default")
    spark.sql("DROP DATABASE shop CASCADE")

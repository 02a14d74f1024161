"""One Spark session for all tests of this directory, with the settings a pipeline runs with."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cutwater.spark.session import embedded_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = embedded_session("local[2]", app_name="cutwater-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cutwater_spark(spark: SparkSession) -> SparkSession:
    """The name by which a user's tests know the session."""
    return spark

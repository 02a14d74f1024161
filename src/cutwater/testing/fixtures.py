"""Fixtures for pytest: `pytest_plugins = ["cutwater.testing.fixtures"]` in your `conftest.py`.

`cutwater_spark` is a small session with the settings that a pipeline runs with, one for all tests
of a run, so that tests and the pipeline use the same Spark settings.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cutwater.spark.session.session import embedded_session


@pytest.fixture(scope="session")
def cutwater_spark() -> Iterator[SparkSession]:
    """Provide a session on two cores of this machine; an existing session is left running."""
    existing = SparkSession.getActiveSession()
    session = embedded_session("local[2]", app_name="cutwater tests")
    yield session
    if existing is None:
        session.stop()

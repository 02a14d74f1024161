"""Leaves out, on an older version of Spark, a test of something that it lacks."""

from importlib.metadata import version

import pytest

from cutwater.spark.versions import FEATURES, refusal

RESTARTS_MAINTENANCE = pytest.mark.skipif(
    version("pyspark").startswith("4.0."),
    reason="Spark 4.0 locks up when the maintenance of its state is stopped while it works",
)
"""On tests that stop the maintenance of state; a pipeline never does."""


def needs(name: str) -> pytest.MarkDecorator:
    """Leave a test out, with the reason, where a feature of the table is missing."""
    (feature,) = (one for one in FEATURES if one.name == name)
    reason = refusal(feature, version("pyspark"))
    return pytest.mark.skipif(reason is not None, reason=reason or "")

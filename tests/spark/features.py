"""Leaves out, on an older version of Spark, a test of something that it lacks."""

from importlib.metadata import version

import pytest

from cutwater.spark.versions import FEATURES, refusal

READS_STATE_AND_STOPS_IT = pytest.mark.skipif(
    version("pyspark").startswith("4.0."),
    reason="Spark 4.0 cannot read state of format 2, and StateStore.stop waits there for threads "
    "that wait for its lock",
)
"""On tests that need both, which nothing replaces on Spark 4.0."""


def needs(name: str) -> pytest.MarkDecorator:
    """Leave a test out, with the reason, where a feature of the table is missing."""
    (feature,) = (one for one in FEATURES if one.name == name)
    reason = refusal(feature, version("pyspark"))
    return pytest.mark.skipif(reason is not None, reason=reason or "")

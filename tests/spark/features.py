"""Leaves out, on an older version of Spark, a test of something that it lacks."""

from importlib.metadata import version

import pytest

from cutwater.spark.versions import FEATURES, refusal


def needs(name: str) -> pytest.MarkDecorator:
    """Leave a test out, with the reason, where a feature of the table is missing."""
    (feature,) = (one for one in FEATURES if one.name == name)
    reason = refusal(feature, version("pyspark"))
    return pytest.mark.skipif(reason is not None, reason=reason or "")

"""Which Spark a pipeline runs on: the one that all tests run on, since channels use its internals.

Needs no pyspark, so that `cutwater doctor` can say what is missing where there is none.
"""

from typing import Final

_FROM: Final = (4, 3)
_BELOW: Final = (4, 4)

PYSPARK: Final = ">=4.3,<4.4"
"""The same as pyproject.toml says of pyspark."""


def is_supported(version: str) -> bool:
    """Say whether a pipeline runs on a version of Spark, such as `4.3.0`."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    return _FROM <= numbers < _BELOW

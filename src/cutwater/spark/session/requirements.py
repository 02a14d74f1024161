"""What a pipeline requires of Spark besides its version: a classic session.

Spark Connect is refused before pyspark's builder runs: the builder would connect to a server, start
one, or fail with Spark's own message about a missing package. This module does not import pyspark,
so `cutwater doctor` can use it where pyspark is not installed.
"""

import os
from collections.abc import Mapping
from typing import Final

from cutwater.errors import SessionError

_PRESENT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables that request Spark Connect as soon as they are set, even to an empty value."""

_API_MODE: Final = "spark.api.mode"


def connect_variables() -> tuple[str, ...]:
    """Return the environment variables that request Spark Connect."""
    found = [name for name in _PRESENT if name in os.environ]
    if os.environ.get("SPARK_API_MODE", "").lower() == "connect":
        found.append("SPARK_API_MODE")
    if os.environ.get("SPARK_CONNECT_MODE") == "1":
        found.append("SPARK_CONNECT_MODE")
    return tuple(found)


def refuse_connect(master: str, conf: Mapping[str, str]) -> None:
    """Refuse to start a session if the settings request Spark Connect.

    Args:
        master: Spark's master, as the user wrote it.
        conf: The user's Spark settings.

    Raises:
        SessionError: Naming every setting that requests it.
    """
    found = list(connect_variables())
    if conf.get(_API_MODE, "").lower() == "connect":
        found.append(f"{_API_MODE}=connect")
    if "spark.remote" in conf:
        found.append("spark.remote")
    if master.strip().startswith("sc://"):
        found.append(f"the master {master.strip()}")
    if found:
        raise SessionError(
            "A pipeline needs a classic session, not one of Spark Connect: start it without "
            f"{' and '.join(found)}."
        )

"""Whether somebody asks for Spark Connect, found out before Spark is asked for a session.

With pyspark's builder it is too late: it goes to a server, or starts one, or complains in Spark's
words of a package that is missing. Needs no pyspark, so that `cutwater doctor` can ask as well.
"""

import os
from collections.abc import Mapping
from typing import Final

from cutwater.errors import SessionError

_PRESENT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables that pyspark only looks for: an empty one asks as well."""

_API_MODE: Final = "spark.api.mode"


def connect_variables() -> tuple[str, ...]:
    """Return the variables of the environment that ask for Spark Connect."""
    found = [name for name in _PRESENT if name in os.environ]
    if os.environ.get("SPARK_API_MODE", "").lower() == "connect":
        found.append("SPARK_API_MODE")
    if os.environ.get("SPARK_CONNECT_MODE") == "1":
        found.append("SPARK_CONNECT_MODE")
    return tuple(found)


def refuse_connect(master: str, conf: Mapping[str, str]) -> None:
    """Refuse to start a session where somebody asks for one of Spark Connect.

    Args:
        master: Spark's master, as the user gives it.
        conf: Settings of the user's.

    Raises:
        SessionError: Naming what asks for it.
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

"""What a pipeline requires of Spark besides its version: a classic session.

Spark Connect is refused before pyspark's builder runs: the builder would connect to a server, start
one, or fail with Spark's own message about a missing package. This module does not import pyspark,
so `cutwater doctor` can use it where pyspark is not installed.
"""

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
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
    """Refuse settings that request Spark Connect; the error names each of them."""
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


def needs_session(error: BaseException | None) -> bool:
    """Return whether pyspark raised this error because there is no session."""
    if error is None or "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return error is not None
    # Functions such as `col` assert that there is a context, without a message.
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, AssertionError) and "pyspark" in Path(innermost).parts

"""Cutwater: one consistent, durable checkpoint of a whole DAG of PySpark streaming queries.

Nothing is imported here that needs Spark; see `ARCHITECTURE.md` for the map of the package.
"""

__all__ = [
    "CheckpointConfig",
    "Pipeline",
    "RestartConfig",
    "__version__",
    "fork",
    "read",
    "rewind",
    "state",
]

from cutwater._version import __version__
from cutwater.config import CheckpointConfig, RestartConfig
from cutwater.moves import fork, rewind
from cutwater.pipeline import Pipeline
from cutwater.sinks.consistent_view import read
from cutwater.state_frame import state

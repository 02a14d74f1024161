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
from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.operations.fork import fork
from cutwater.operations.rewind.rewind import rewind
from cutwater.pipeline.pipeline import Pipeline
from cutwater.sinks.consistent_view import read
from cutwater.step_state.frame import state

"""Public tools for testing pipelines and the protocol itself.

`run_batch` calls a pipeline's functions on plain DataFrames, for unit tests of what a user writes;
`cutwater.testing.fixtures` has a Spark session for pytest. `SinkContract` checks a sink of your own
(docs/how-to/write-a-sink.md). `cutwater.testing.simulation` runs the driver in a world of faults,
driven by a seed.
"""

__all__ = ["SinkContract", "run_batch"]

from cutwater.testing.run_batch import run_batch
from cutwater.testing.sink_contract.tests import SinkContract

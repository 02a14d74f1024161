"""Where a pipeline's rows go: the targets a user names in `pipeline.sink`.

`base` is the contract of every target. A target's own package is imported only when the target is
opened.
"""

__all__ = ["console", "delta", "files", "foreach_batch", "kafka", "postgres", "table"]

from cutwater.sinks.catalog_table import table
from cutwater.sinks.console import console
from cutwater.sinks.delta.target import delta
from cutwater.sinks.files.target import files
from cutwater.sinks.foreach_batch import foreach_batch
from cutwater.sinks.kafka.target import kafka
from cutwater.sinks.postgres.target import postgres

"""Where a pipeline's rows go: the targets a user names in `pipeline.sink`.

`base` is the contract that every target keeps; nothing here needs a target's own package before
the target is opened.
"""

__all__ = ["delta", "postgres"]

from cutwater.sinks.delta import delta
from cutwater.sinks.postgres import postgres

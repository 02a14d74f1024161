"""How rows meet those that a Delta table has: the one value that everything below a sink shares.

Made from what a user writes (`sinks.delta`), which is checked there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Writing:
    """How rows meet those that a table has.

    Attributes:
        write: `append`, `upsert` or `overwrite`.
        keys: For an upsert, the columns that tell whether two rows are the same one.
        partition_by: The columns that divide the table's files.
    """

    write: str = "append"
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

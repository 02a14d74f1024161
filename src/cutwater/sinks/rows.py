"""The rows of one batch as a sink gets them: not computed yet, and to be computed once.

A batch is either a DataFrame or a batch that Spark has planned already; written as Parquet, the
second kind is not planned again. A sink that wants anything else takes the DataFrame.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

STRICT_READING: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options of Spark's reader for files that hold rows of ours: one that is lost or damaged is an
error, whatever the session says of files in general."""


class Rows(Protocol):
    """The rows of one batch, which nobody has computed yet."""

    @property
    def schema(self) -> StructType:
        """Their columns."""
        ...

    @property
    def frame(self) -> "DataFrame":
        """The rows as a DataFrame."""
        ...

    def gathered(self) -> "Rows":
        """Return the same rows, to be written by one task into one file."""
        ...

    def count(self) -> int:
        """Compute them all, every column, with exactly one Spark action, and keep none."""
        ...

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        """Write them into a directory that does not exist yet, with exactly one Spark action.

        Args:
            directory: Path or address, as Hadoop reads it.
            options: Settings of Hadoop's for this write.
            partition_by: Columns that become directories.

        Returns:
            How many rows the executors wrote, as they counted them. Files that hold fewer rows
            have lost some on the way.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The rows of a DataFrame."""

    frame: "DataFrame"

    @property
    def schema(self) -> StructType:
        """Their columns."""
        return self.frame.schema

    def gathered(self) -> "FrameRows":
        """Return the same rows, to be written by one task into one file."""
        return FrameRows(self.frame.coalesce(1))

    def count(self) -> int:
        """Compute them all and keep none."""
        # `DataFrame.count` would let Spark leave out whatever is not needed to count.
        return int(self.frame._jdf.queryExecution().toRdd().count())  # noqa: SLF001

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        """Write them."""
        counted, frame = observed(self.frame)
        frame.write.options(**options).partitionBy(*partition_by).parquet(directory)
        return int(counted.get["rows"])


def observed(frame: "DataFrame") -> "tuple[Observation, DataFrame]":
    """Return the same rows, and what counts them as `rows` while they are computed."""
    from pyspark.sql import Observation  # noqa: PLC0415 - only whoever stages needs it
    from pyspark.sql.functions import count, lit  # noqa: PLC0415

    counted = Observation()
    return counted, frame.observe(counted, count(lit(1)).alias("rows"))

"""Arbitrary state: find every hundredth row of each key with transformWithState.

cutwater run examples/transform_with_state.py:create --available-now
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cutwater import Pipeline, sinks, sources


class EveryHundredth(StatefulProcessor):
    """Counts the rows of a key and emits every hundredth row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: one count per key."""
        self._seen = handle.getValueState("seen", "count long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401 - Spark's type
        rows: Iterator[Row],
        timerValues: Any,  # noqa: ANN401, ARG002, N803 - Spark's name and type
    ) -> Iterator[Row]:
        """Count the rows and emit each row whose count is a multiple of 100."""
        state = self._seen.get()
        seen = state[0] if state is not None else 0
        for row in sorted(rows, key=lambda one: one["value"]):
            seen += 1
            if seen % 100 == 0:
                yield Row(key=key[0], nth=seen, value=row["value"])
        self._seen.update((seen,))

    def close(self) -> None:
        """Release nothing: the processor holds no resources."""


def create(
    total: str = "20000", rate: str = "4000", table: str = "out/every_hundredth"
) -> Pipeline:
    """Create the pipeline."""
    pipeline = Pipeline("every_hundredth")

    @pipeline.source
    def numbers(spark: SparkSession) -> DataFrame:
        rows = sources.sequence(spark, total=int(total), rate=float(rate), batch_max=2000)
        return rows.withColumn("key", F.col("value") % 5)

    @pipeline.step(partitions=2)
    def hundredth(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy("key").transformWithState(
            statefulProcessor=EveryHundredth(),
            outputStructType="key long, nth long, value long",
            outputMode="append",
            timeMode="none",
        )

    pipeline.sink("hundredths", sinks.delta(table), of=hundredth)
    return pipeline

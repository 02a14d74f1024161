"""A Spark whose tasks send their rows, lose the answer, and are run again: a process of its own.

    python -m tests.spark.retried_copy DSN

The tests' own session runs every task once; here each may fail twice.
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from cutwater import sinks
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.sinks.base import FrameRows, SinkContext
from cutwater.sinks.postgres import table as postgres_table
from cutwater.sinks.postgres.copy import CopyJob, copy_task
from cutwater.spark.session.session import embedded_session

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")


def sent_and_lost(job: CopyJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows for good, and fail all the same at the first attempt."""
    told = list(copy_task(job, batches))
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the answer is lost")
    yield from told


def main() -> None:
    """Stage and commit 1,000 rows in four tasks that are all run twice."""
    vars(postgres_table)["copy_task"] = sent_and_lost
    spark = embedded_session("local[2,3]", app_name="retries")
    target = sinks.postgres(sys.argv[1], table="t")
    sink = target.open(SinkContext(spark, PIPELINE, SinkId("t")))
    staged = sink.stage(FrameRows(spark.range(0, 1000, 1, 4)), Generation(1), BatchId(0))
    assert staged is not None
    assert staged.rows == 1000
    sink.commit(grant(PIPELINE, Slot(1), CheckpointId(1)), [staged])
    spark.stop()


if __name__ == "__main__":
    main()

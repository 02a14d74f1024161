"""Commits to a Delta table in a process of its own, which kills itself at a named moment.

    python -m tests.contract.delta_child TABLE WRITE MOMENT COUNT SLOT < committables

It dies with SIGKILL when the moment has come for the count-th time, and otherwise says the version.
"""

import json
import os
import signal
import sys
from typing import Any

from cutwater import sinks
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import grant
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.base import SinkContext
from cutwater.sinks.delta.data_files import Copies
from cutwater.sinks.delta.storage import LocalStorage
from cutwater.sinks.delta.table import OpenDeltaTable
from cutwater.sinks.delta.transaction_log import DeltaLog
from cutwater.sinks.staging.parquet import StagedFiles

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("totals")
MOMENTS = {
    "settle": (StagedFiles, "settle"),
    "copy": (Copies, "copy"),
    "publish": (LocalStorage, "publish"),
    "version": (OpenDeltaTable, "_write"),
    "sync": (DeltaLog, "sync"),
    "forget": (StagedFiles, "forget"),
}
KEYS = {"upsert": ["k", "n"]}


def die_at(moment: str, count: int) -> None:
    """Make this process kill itself `before` or `after` one of the moments."""
    when, _, name = moment.partition(" ")
    owner, method = MOMENTS[name]
    original = getattr(owner, method)
    left = count

    def passed(at: str) -> None:
        nonlocal left
        left -= at == when
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def doomed(self: object, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        passed("before")
        result = original(self, *given, **named)
        passed("after")
        return result

    setattr(owner, method, doomed)


def main() -> None:
    table, write, moment, count, slot = sys.argv[1:]
    work = [
        Committable(
            SINK,
            Generation(generation),
            BatchId(batch),
            rows,
            tuple(BlobRef(*blob) for blob in blobs),
        )
        for generation, batch, rows, blobs in json.load(sys.stdin)
    ]
    if moment:
        die_at(moment, int(count))
    sink = sinks.delta(table, write=write, keys=KEYS.get(write, ()))
    opened = sink.open(SinkContext(None, PIPELINE, SINK))
    permit = grant(PIPELINE, Slot(int(slot)), CheckpointId(int(slot)))
    sys.stdout.write(opened.commit(permit, work))


if __name__ == "__main__":
    main()

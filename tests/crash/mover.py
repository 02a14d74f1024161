"""Rewinds and forks in processes of their own, to be killed before or after one durable write.

    python -m tests.crash.mover

Each line of its input is a task: `[STORE, PIPELINE, "rewind", TO]` or `[…, "fork", NEW]`, and after
that, if it shall die, `"before"` or `"after"`, the name of a write, and the how many-th. It is done
by a fork of this process, which has imported everything and used nothing; the answer is a line with
its exit code and the names of the writes it came to. So the list of writes to die at comes from the
code itself. Needs no Spark.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from tests.crash.writes import name_store_writes, wrap

import cutwater
from cutwater.sinks.delta.table import OpenDeltaTable  # noqa: F401 - imports what is wrapped

TOLD: Final = 9
"""Where a child tells the names of its writes."""


class Fate:
    """When this process kills itself."""

    def __init__(self, moment: str = "", write: str = "", count: int = 0) -> None:
        self.moment, self.write, self.left = moment, write, count

    def reached(self, moment: str, write: str) -> None:
        """Note that a write is about to be made, or was made, and die if it was the one."""
        if moment == "before":
            os.write(TOLD, f"{write}\n".encode())
        if (moment, write) == (self.moment, self.write):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def name_writes(fate: Fate) -> None:
    """Give every durable write a name: what is done, and to which kind of object."""
    name_store_writes(fate.reached)
    for method in ("restore", "create_write_transaction"):
        wrap(DeltaTable, method, lambda table, *_: Path(table.table_uri).name, fate.reached)


def move(store: str, pipeline: str, what: str, given: str, *when: str) -> None:
    """Do it, or die."""
    name_writes(Fate(when[0], when[1], int(when[2])) if when else Fate())
    if what == "rewind":
        cutwater.rewind(pipeline, to=given, store=store, yes=True)
    else:
        cutwater.fork(pipeline, given, start_from="2", store=store)


def done_by_a_fork(task: list[str]) -> tuple[int, list[str]]:
    """Let a child do a task; return its exit code and the writes it came to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, TOLD)
        try:
            move(*task)
        except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        writes = told.read().split()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), writes


def main() -> None:
    """Do what comes, until the input ends."""
    for line in sys.stdin:
        answer = json.dumps(done_by_a_fork(json.loads(line)))
        os.write(1, f"{answer}\n".encode())


if __name__ == "__main__":
    main()

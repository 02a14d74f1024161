"""Runs rewinds and forks in child processes that kill themselves at one durable write.

    python -m tests.crash.operation_process

Each line of its input is a task: `[STORE, PIPELINE, "rewind", TO]` or `[…, "fork", NEW]`. If the
child is to be killed, `"before"` or `"after"`, the name of a write, and its count follow. The task
runs in a fork of this process, which has imported every module and used none. The reply is a line
with the exit code of the child and the names of the writes it reached: the list of writes at which
tests kill comes from the code itself. Needs no Spark.
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

WRITES_FD: Final = 9
"""The file descriptor to which a child reports the names of its writes."""


class KillPoint:
    """The moment at which this process kills itself."""

    def __init__(self, moment: str = "", write: str = "", count: int = 0) -> None:
        self.moment, self.write, self.left = moment, write, count

    def reached(self, moment: str, write: str) -> None:
        """Report a write before it is made; kill this process if this is the moment."""
        if moment == "before":
            os.write(WRITES_FD, f"{write}\n".encode())
        if (moment, write) == (self.moment, self.write):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def name_writes(kill_point: KillPoint) -> None:
    """Give every durable write a name: what is done, and to which kind of object."""
    name_store_writes(kill_point.reached)
    for method in ("restore", "create_write_transaction"):
        wrap(DeltaTable, method, lambda table, *_: Path(table.table_uri).name, kill_point.reached)


def run_operation(store: str, pipeline: str, what: str, given: str, *when: str) -> None:
    """Run a rewind or a fork, up to the kill point if there is one."""
    name_writes(KillPoint(when[0], when[1], int(when[2])) if when else KillPoint())
    if what == "rewind":
        cutwater.rewind(pipeline, to=given, store=store, yes=True)
    else:
        cutwater.fork(pipeline, given, start_from="2", store=store)


def run_in_child(task: list[str]) -> tuple[int, list[str]]:
    """Run a task in a child process; return its exit code and the writes it reached."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, WRITES_FD)
        try:
            run_operation(*task)
        except BaseException:  # noqa: BLE001 - any error must reach the parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as reported:
        writes = reported.read().split()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), writes


def main() -> None:
    """Run tasks until the input ends."""
    for line in sys.stdin:
        answer = json.dumps(run_in_child(json.loads(line)))
        os.write(1, f"{answer}\n".encode())


if __name__ == "__main__":
    main()

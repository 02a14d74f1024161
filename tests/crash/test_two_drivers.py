"""Two drivers of one pipeline: the second is refused, takes over from the dead, or fences."""

import signal
import socket
from dataclasses import replace
from pathlib import Path

from tests.crash.drivers import Drivers, Task, parent_of
from tests.crash.killing import ENDLESS, REST
from tests.crash.pipeline_state import read_state, rows_of, slots_of

from cutwater.store.backends.local import LocalBackend
from cutwater.store.records.catalog import find_pipeline
from cutwater.store.records.lease import STALE_MS, Lease, Leases


def lease(directory: Path) -> Lease:
    """Return the lease of the process that runs the pipeline."""
    backend = LocalBackend(directory / "store")
    found = Leases(backend, find_pipeline(backend, "join")).read()
    assert found is not None
    return found


def test_a_second_driver_waits_for_the_first_or_fences_it_out(
    drivers: Drivers, tmp_path: Path
) -> None:
    table = tmp_path / "tables" / "joined"
    parameters = {"rate": "1500", "table": str(table), "total": ENDLESS}
    task = Task("join", str(tmp_path), parameters)
    first, second = drivers.take(), drivers.take()
    first.run(task)
    first.wait_for("checkpoint")

    # Refused while the first one lives.
    second.run(task)
    refused = second.wait_for("error")
    # Not refused once it is dead, however fresh its heartbeat.
    started_by_first = first.children()
    first.kill()
    left = lease(tmp_path)
    second.run(task)
    held_ms = second.wait_for("started")["held_ms"]
    second.wait_for("checkpoint")
    # Paused, it cannot know that a third one has taken over.
    second.signal(signal.SIGSTOP)
    third = drivers.take()
    total = read_state("join", tmp_path).source_position + REST
    parameters["total"] = str(total)
    third.run(replace(task, parameters=parameters, takeover=True))
    third.wait_for("checkpoint")
    second.signal(signal.SIGCONT)
    fenced = second.wait_for("error")
    third.finish()

    assert refused["kind"] == "PipelineHeld"
    assert refused["facts"]["host"] == socket.gethostname()
    assert refused["facts"]["process"] == first.id
    assert str(first.id) in refused["message"]
    assert (left.process, left.released) == (first.id, False)
    assert held_ms - left.beat_at_ms < STALE_MS
    assert fenced["kind"] == "Fenced"
    assert (fenced["facts"]["generation"], fenced["facts"]["newer"]) == (2, 3)
    assert rows_of(table, None, "value", "seven") == [
        (number, number * 7) for number in range(total)
    ]
    assert slots_of(table) == sorted(set(slots_of(table)))
    assert len(started_by_first) == 1
    assert parent_of(started_by_first[0]) is None

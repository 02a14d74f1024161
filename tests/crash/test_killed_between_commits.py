"""Drivers killed while rows wait for `commit_every`: tables are changed seldom and are exact."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from tests.crash.drivers import Drivers
from tests.crash.killing import Killing
from tests.crash.pipeline_state import rows_of

from cutwater.ids import SinkId
from cutwater.protocol.cut import CheckpointKind

EVERY_MS = 60_000
SINK = SinkId("table")


@pytest.mark.long
def test_rows_that_wait_for_their_commit_survive_several_drivers(
    drivers: Drivers, tmp_path: Path
) -> None:
    table = tmp_path / "tables" / "numbers"
    given = {"rate": "1500", "table": str(table), "commit_every": "60s"}
    straight = Killing(drivers, tmp_path, "straight", given, interval="1s")

    waiting = straight.dies_at("decision", 4)
    straight.dies_at("stage", 2)
    straight.dies_at("decision")
    total = straight.finish()

    # The first rows are committed by the first cut that has any; three cuts later nothing more
    # is: the rows lie beside the table. They are what
    # the first commit of a later generation begins with.
    carried = waiting.cuts[-1].carried[SINK]
    assert (waiting.changes, waiting.cuts[-1].commit_point) == (1, False)
    assert len(carried) >= 3
    assert len(waiting.staged) >= len(carried)
    later = (
        cut
        for cut in straight.states[-1].cuts
        if cut.checkpoint_id > waiting.cuts[-1].checkpoint_id
    )
    first = next(cut for cut in later if cut.commit_point)
    assert first.commit[SINK][: len(carried)] == carried
    assert rows_of(table, None, "value", "seven") == [
        (number, number * 7) for number in range(total)
    ]
    committed = defaultdict(list)
    for cut in straight.states[-1].cuts:
        finished = all(snapshot.finished for snapshot in cut.snapshots.values())
        if cut.commit_point and cut.commit[SINK] and not finished:
            assert cut.kind is CheckpointKind.CHECKPOINT
            committed[cut.generation].append(cut.started_at_ms)
    assert len(committed) >= 2
    for starts in committed.values():
        assert all(later - number >= EVERY_MS for number, later in pairwise(starts)), starts

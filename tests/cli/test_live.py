"""What a person is told between two looks at a run."""

from dataclasses import replace

import msgspec
from tests.unit.store.cuts import sample_recovery

from cutwater.cli.live import notices
from cutwater.ids import Generation
from cutwater.runtime.reporting.status import RunStatus
from cutwater.store.records.reports import RecoveryReport

RECOVERY = sample_recovery()
RUNNING = RunStatus("orders", 3, "RUNNING")


def told(before: RecoveryReport | None, after: RecoveryReport | None) -> list[str]:
    found = notices(replace(RUNNING, recovery=before), replace(RUNNING, recovery=after))
    return [row.text for row in found if row.kind == "recovery"]


def test_a_recovery_is_told_once_when_its_first_batch_is_finished() -> None:
    unfinished = msgspec.structs.replace(RECOVERY, first_batch_ms=None)
    newer = msgspec.structs.replace(RECOVERY, generation=Generation(4))

    (text,) = told(unfinished, RECOVERY)

    assert text.startswith("generation 3 began from checkpoint 12 at ")
    assert "fetch 3 ms (0 B from the store, 0 B found here), start 4 ms, first batch 5 ms" in text
    assert told(None, None) == []
    assert told(None, unfinished) == []
    assert told(None, RECOVERY) == [text]
    assert told(RECOVERY, RECOVERY) == []
    assert len(told(RECOVERY, newer)) == 1

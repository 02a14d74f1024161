"""Golden records of the store: what a released format wrote is read for ever.

One directory per format. A file is added, never edited: if the first test fails, what is written
has changed, and that is a new format with a reader, a directory and an ADR of its own.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store import cuts

from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.store.paths import ObjectPath, PipelinePaths, label, name
from cutwater.store.records.codecs import ATTEMPT, COMMITTED, LABEL, LOG_ENTRY, NAME
from cutwater.store.records.decision_log import SEGMENT
from cutwater.store.records.envelope import FORMAT, RecordKind, decode, encode
from cutwater.store.records.manifests import MANIFEST
from cutwater.store.records.reports import RECOVERY, REPORT
from cutwater.store.records.requests import ANSWER, REQUEST
from cutwater.store.records.savepoints import DROPPED
from cutwater.store.records.starts import START
from cutwater.store.records.targets import ORIGIN, TARGETS

GOLDEN = Path(__file__).parent / "store"
PATHS = PipelinePaths(cuts.PIPELINE)

RECORDS: dict[str, tuple[RecordKind[Any, Any], ObjectPath, object]] = {
    "claim": (LOG_ENTRY, PATHS.log_entry(Slot(1)), cuts.sample_claim()),
    "decision": (LOG_ENTRY, PATHS.log_entry(Slot(2)), cuts.sample_decision()),
    "volume": (SEGMENT, PATHS.log_segment(Slot(2)), (cuts.sample_claim(), cuts.sample_decision())),
    "manifest": (MANIFEST, PATHS.manifest(CheckpointId(12)), cuts.sample_cut()),
    # Manifests were written without identities at first; both are format 1 (docs/adr/0013).
    "manifest-with-identities": (
        MANIFEST,
        PATHS.manifest(CheckpointId(12)),
        replace(cuts.sample_cut(), identities=cuts.sample_identities()),
    ),
    # Identities did not name brokers and topics at first; both are format 1 (docs/adr/0047).
    "manifest-with-topics": (
        MANIFEST,
        PATHS.manifest(CheckpointId(12)),
        replace(cuts.sample_cut(), identities=cuts.sample_kafka_identities()),
    ),
    "start": (START, PATHS.start(CheckpointId(12), cuts.ORDERS, 0, "5ca1"), cuts.sample_start()),
    "attempt": (ATTEMPT, PATHS.attempt(CheckpointId(12)), cuts.sample_attempt()),
    "committed": (COMMITTED, PATHS.committed(Slot(2)), cuts.sample_committed()),
    "targets": (TARGETS, PATHS.targets(Generation(3)), cuts.sample_targets()),
    "origin": (ORIGIN, PATHS.origin, cuts.sample_origin()),
    "name": (NAME, name("orders"), cuts.PIPELINE),
    "label": (LABEL, label(cuts.PIPELINE), "Aufträge"),
    "dropped": (DROPPED, PATHS.dropped(CheckpointId(12)), CheckpointId(12)),
    "report": (REPORT, PATHS.report(CheckpointId(12)), cuts.sample_report()),
    "recovery": (RECOVERY, PATHS.recovery(Generation(3)), cuts.sample_recovery()),
    "request": (REQUEST, PATHS.asked("5ca1ab1e"), cuts.sample_request()),
    # Requests had no aborts at first; both are format 1 (docs/adr/0037).
    "request-to-abort": (REQUEST, PATHS.asked("5ca1ab1e"), cuts.sample_abort()),
    "answer": (ANSWER, PATHS.answer("5ca1ab1e"), cuts.sample_answer()),
}


@pytest.mark.parametrize("record", RECORDS)
def test_what_is_written_is_the_present_format_byte_for_byte(record: str) -> None:
    kind, path, value = RECORDS[record]

    assert (
        encode(kind, path, value) == (GOLDEN / f"format-{FORMAT}" / f"{record}.json").read_bytes()
    )


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_what_every_released_format_wrote_is_still_read(version: int, record: str) -> None:
    kind, path, value = RECORDS[record]

    data = (GOLDEN / f"format-{version}" / f"{record}.json").read_bytes()

    assert decode(kind, path, data) == value


def test_every_golden_record_is_checked() -> None:
    stored = {file.stem for file in GOLDEN.glob("format-*/*")}

    assert stored == set(RECORDS)

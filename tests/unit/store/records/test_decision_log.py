"""The decision log in a store: consecutive, created once, read back when in doubt."""

import pytest
from tests.unit.store.cuts import PIPELINE, sample_claim, sample_decision
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import Corrupt, InvariantBroken, NotFound, OutcomeUnknown, Unavailable
from cutwater.ids import NO_SLOT, PipelineId, Slot
from cutwater.protocol.decisions import DecisionOutcome, LogView
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.records.codecs import LOG_ENTRY
from cutwater.store.records.decision_log import DecisionLog
from cutwater.store.records.envelope import encode

PATHS = PipelinePaths(PIPELINE)
FIRST, SECOND = PATHS.log_entry(Slot(1)), PATHS.log_entry(Slot(2))
CLAIM, DECISION = sample_claim(), sample_decision()
WRITTEN, TAKEN, UNKNOWN = DecisionOutcome.WRITTEN, DecisionOutcome.TAKEN, DecisionOutcome.UNKNOWN

LOST = OutcomeUnknown(FIRST, "the answer was lost")
AWAY = Unavailable(FIRST, "the store does not answer")


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def log(backend: FaultyBackend) -> DecisionLog:
    return DecisionLog(backend, PIPELINE)


# -- reading


def test_a_log_begins_empty(log: DecisionLog) -> None:
    assert log.read() == LogView()
    assert log.read().last_slot == NO_SLOT


def test_what_one_process_creates_another_reads(backend: FaultyBackend, log: DecisionLog) -> None:
    assert log.create(CLAIM) is WRITTEN
    assert log.create(DECISION) is WRITTEN

    assert DecisionLog(backend, PIPELINE).read() == LogView((CLAIM, DECISION))
    assert log.read() == LogView((CLAIM, DECISION))


def test_pipelines_of_one_store_have_logs_of_their_own(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    log.create(CLAIM)

    assert DecisionLog(backend, PipelineId("another")).read() == LogView()


def test_a_log_that_is_read_again_costs_only_the_new_slots(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    log.create(CLAIM)
    log.read()
    backend.reads.clear()
    DecisionLog(backend, PIPELINE).create(DECISION)
    backend.reads.clear()
    lists = backend.lists

    view = log.read()

    assert view == LogView((CLAIM, DECISION))
    assert backend.reads == [SECOND, PATHS.log_entry(Slot(3))]
    assert backend.lists == lists


def test_a_log_without_news_is_the_same_view(log: DecisionLog) -> None:
    log.create(CLAIM)

    assert log.read() is log.read()


def test_a_log_with_a_hole_is_damaged(backend: FaultyBackend, log: DecisionLog) -> None:
    """Invariant 7: guessing what was in it would lose data."""
    log.create(CLAIM)
    log.create(DECISION)
    backend.delete(FIRST)

    with pytest.raises(Corrupt, match="the log continues to slot 2") as damaged:
        DecisionLog(backend, PIPELINE).read()

    assert damaged.value.path == FIRST


def test_an_entry_that_we_wrote_and_cannot_find_is_damage(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    log.read()
    log.create(CLAIM)
    backend.delete(FIRST)

    with pytest.raises(Corrupt, match="the log continues to slot 1"):
        log.read()


def test_an_entry_that_cannot_be_decoded_is_an_error(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    backend.put(FIRST, b"torn")

    with pytest.raises(Corrupt, match=FIRST):
        log.read()


def test_an_entry_of_another_slot_is_an_error(backend: FaultyBackend, log: DecisionLog) -> None:
    backend.put(FIRST, encode(LOG_ENTRY, SECOND, DECISION))

    with pytest.raises(Corrupt, match=SECOND):
        log.read()


def test_something_else_among_the_entries_is_an_error(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    backend.put(ObjectPath(f"{FIRST}.bak"), b"")

    with pytest.raises(Corrupt, match="bak"):
        log.read()


def test_a_store_that_does_not_answer_is_not_an_empty_log(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    backend.before_read.append(AWAY)

    with pytest.raises(Unavailable):
        log.read()
    assert log.read() == LogView()


# -- creating


def test_a_slot_that_another_process_has_taken_fences_us_out(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    """Rule F5: the claim takes the slot that a paused process wants."""
    log.create(CLAIM)
    DecisionLog(backend, PIPELINE).create(sample_claim(2, 4, "host-2/7"))

    assert log.create(DECISION) is TAKEN
    assert log.read() == LogView((CLAIM, sample_claim(2, 4, "host-2/7")))


def test_a_slot_lost_at_the_last_moment_fences_us_out(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    rival = DecisionLog(backend, PIPELINE)
    backend.meanwhile.append(lambda: rival.create(sample_claim(1, 4, "host-2/7")))

    assert log.create(CLAIM) is TAKEN


def test_an_entry_that_is_created_again_is_still_ours(log: DecisionLog) -> None:
    log.create(CLAIM)

    assert log.create(CLAIM) is WRITTEN


@pytest.mark.parametrize("error", [LOST, AWAY])
def test_an_answer_that_was_lost_is_found_by_the_nonce(
    backend: FaultyBackend, log: DecisionLog, error: OutcomeUnknown | Unavailable
) -> None:
    """Rule F15: "exists" may be ourselves."""
    backend.after_create.append(error)

    assert log.create(CLAIM) is WRITTEN
    assert log.create(DECISION) is WRITTEN


def test_a_lost_answer_to_a_lost_race_fences_us_out(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    DecisionLog(backend, PIPELINE).create(sample_claim(1, 4, "host-2/7"))
    backend.after_create.append(LOST)

    assert log.create(CLAIM) is TAKEN


def test_a_create_that_may_still_arrive_stays_unknown(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    backend.before_create.append(LOST)

    assert log.create(CLAIM) is UNKNOWN
    told = f"{FIRST}: the answer was lost; it may or may not be written."
    assert log.doubt(CLAIM.slot).message == told


@pytest.mark.parametrize("error", [AWAY, Corrupt(FIRST, "torn"), NotFound(FIRST)])
def test_a_slot_that_cannot_be_read_back_stays_unknown(
    backend: FaultyBackend, log: DecisionLog, error: Unavailable | Corrupt | NotFound
) -> None:
    backend.after_create.append(LOST)
    backend.before_read.append(error)

    assert log.create(CLAIM) is UNKNOWN


def test_the_reason_of_an_unknown_outcome_is_that_of_the_last_try(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    backend.before_create.append(LOST)
    log.create(CLAIM)
    lost = log.doubt(CLAIM.slot).reason
    DecisionLog(backend, PIPELINE).create(sample_claim(1, 4, "host-2/7"))
    backend.before_read.append(AWAY)
    away = log.create(CLAIM), log.doubt(CLAIM.slot).reason
    backend.before_read.append(NotFound(FIRST))
    gone = log.create(CLAIM), log.doubt(CLAIM.slot).reason

    assert lost == "the answer was lost; it may or may not be written"
    assert away == (UNKNOWN, "the store does not answer; it may or may not be written")
    assert gone == (UNKNOWN, "it may or may not be written")


def test_a_create_of_unknown_outcome_is_settled_by_reading(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    backend.after_create.append(LOST)
    backend.before_read.append(AWAY)
    log.create(CLAIM)

    assert DecisionLog(backend, PIPELINE).read() == LogView((CLAIM,))


@pytest.mark.parametrize("slot", [-1, 0, 3, 9])
def test_a_slot_that_does_not_follow_is_never_created(
    backend: FaultyBackend, log: DecisionLog, slot: int
) -> None:
    """Invariant 7: it would leave a hole."""
    log.create(CLAIM)

    with pytest.raises(InvariantBroken, match="I7"):
        log.create(sample_decision(slot))
    assert backend.list(PATHS.log_entries) == (FIRST,)


def test_a_slot_is_created_after_slots_that_others_have_filled(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    rival = DecisionLog(backend, PIPELINE)
    rival.create(CLAIM)
    rival.create(DECISION)

    assert log.create(sample_claim(3, 4, "host-2/7")) is WRITTEN


def test_nothing_is_created_while_the_log_before_it_cannot_be_read(
    backend: FaultyBackend, log: DecisionLog
) -> None:
    DecisionLog(backend, PIPELINE).create(CLAIM)
    backend.before_read.append(AWAY)

    with pytest.raises(Unavailable):
        log.create(DECISION)
    assert not backend.exists(SECOND)

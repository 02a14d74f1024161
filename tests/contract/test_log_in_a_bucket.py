"""The decision log over a real S3 server: many want each slot, answers are lost, one has it."""

import itertools
import uuid
from functools import partial

from tests.contract.store_contract import at_once
from tests.servers.gateway import Request, gateway_to, hang_up, lose_the_answer
from tests.servers.s3 import S3Server

from cutwater.ids import Generation, PipelineId, Slot
from cutwater.protocol.decisions import Claim, DecisionOutcome
from cutwater.store.backends.location import backend_at
from cutwater.store.records.decision_log import DecisionLog

PIPELINE = PipelineId("0b9c4a52-6f0e-4d7c-9a53-2f3f4c1d8e77")
SLOTS = 10
WRITERS = 4


def test_exactly_one_writer_has_each_slot_and_knows_it_although_answers_are_lost(
    s3: S3Server,
) -> None:
    prefix = uuid.uuid4().hex
    numbers = itertools.count(1)

    def lose_some(request: Request) -> bool:
        number = next(numbers)
        if request.method == "PUT" and number % 3 == 0:
            return lose_the_answer(request)
        return number % 7 != 0 or hang_up(request)

    def fill(url: str, writer: int) -> list[DecisionOutcome]:
        log = DecisionLog(backend_at(url), PIPELINE)
        outcomes = []
        for slot in range(1, SLOTS + 1):
            outcomes.append(log.create(Claim(Slot(slot), Generation(slot), f"writer {writer}")))
            log.read()
        return outcomes

    with gateway_to(s3.port) as gateway:
        gateway.always = lose_some
        url = s3.url(prefix, gateway.endpoint)
        told = at_once([partial(fill, url, writer) for writer in range(WRITERS)])
    entries = DecisionLog(backend_at(s3.url(prefix)), PIPELINE).read().entries

    found = [int(entry.nonce.removeprefix("writer ")) for entry in entries]
    winners = [
        [writer for writer in range(WRITERS) if told[writer][slot] is DecisionOutcome.WRITTEN]
        for slot in range(SLOTS)
    ]
    assert winners == [[writer] for writer in found]
    assert DecisionOutcome.UNKNOWN not in itertools.chain(*told)

"""Why a client cannot reach its broker: what it tells in the background, and only then."""

from dataclasses import dataclass

import pytest

from cutwater.kafka import client_errors
from cutwater.kafka.client_errors import ClientErrors


@dataclass(frozen=True)
class Told:
    code: str
    text: str

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return self.text


@dataclass
class Client:
    """Tells its errors when it is polled, as librdkafka's clients do."""

    errors: ClientErrors
    waiting: list[Told]

    def poll(self, timeout: float) -> object:
        del timeout
        while self.waiting:
            self.errors.note(self.waiting.pop(0))
        return None


DOWN = Exception(Told("_TRANSPORT", "Failed to get metadata: Local: Broker transport failure."))
WRONG = Told("_AUTHENTICATION", "sasl_ssl://b: invalid credentials (after 3ms in state AUTH_REQ)")
ALL_DOWN = Told("_ALL_BROKERS_DOWN", "1/1 brokers are down")


def test_a_cause_takes_the_place_of_a_broker_that_does_not_answer() -> None:
    errors = ClientErrors()
    client = Client(errors, [WRONG, ALL_DOWN])

    assert errors.reason(DOWN, None, client) == "sasl_ssl://b: invalid credentials"
    assert errors.reason(TimeoutError()) == "sasl_ssl://b: invalid credentials"


def test_an_error_with_a_reason_of_its_own_keeps_it() -> None:
    errors = ClientErrors()
    errors.note(WRONG)

    assert errors.reason(Exception(Told("TOPIC_EXCEPTION", "Broker: Invalid topic."))) == (
        "Broker: Invalid topic"
    )
    assert errors.reason(ValueError()) == "ValueError"


def test_a_cause_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = ClientErrors()
    errors.note(WRONG)
    monkeypatch.setattr(client_errors, "_VALID_S", 0.0)

    assert errors.reason(DOWN) == "Failed to get metadata: Local: Broker transport failure"

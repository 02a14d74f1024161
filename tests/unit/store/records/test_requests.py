"""Requests: carried out at most once, in time, by the process they were addressed to."""

import pytest
from msgspec import structs
from tests.unit.store.checkpoint_writer import attempt_report
from tests.unit.store.cuts import PIPELINE

from cutwater.errors import ConfigError, Conflict
from cutwater.ids import CheckpointId
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.requests import (
    FORGET_MS,
    REASON_MAX,
    Abort,
    Answer,
    AnswerState,
    Request,
    RequestKind,
    Requests,
    Treatment,
    Wanted,
    abort_reason,
    choose_treatment,
)

PATHS = PipelinePaths(PIPELINE)
TOKEN = "5ca1ab1e"
US, NOW = "our-nonce", 1_700_000_000_000


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def requests(backend: MemoryBackend) -> Requests:
    return Requests(backend, PIPELINE)


def request(holder: str = US, expires_at_ms: int = NOW + 1) -> Request:
    return Request(
        token=TOKEN,
        kind=RequestKind.SAVEPOINT,
        holder=holder,
        asked_by="process 7 on host",
        asked_at_ms=NOW - 10,
        expires_at_ms=expires_at_ms,
        name="before",
    )


def answer(state: AnswerState, holder: str = US, answered_at_ms: int = NOW) -> Answer:
    return Answer(
        token=TOKEN,
        state=state,
        holder=holder,
        answered_at_ms=answered_at_ms,
        report=attempt_report(3),
    )


# -- what the running process does about it

LONG_AGO = NOW - FORGET_MS
TAKEN, DONE, FAILED = AnswerState.TAKEN, AnswerState.DONE, AnswerState.FAILED


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        (request(), None, Treatment.TAKE),
        (request(expires_at_ms=NOW), None, Treatment.REMOVE),
        (request(holder="another"), None, Treatment.REFUSE),
        (request(holder="another", expires_at_ms=NOW), None, Treatment.REMOVE),
        # Taken, and not by anything that this process works on: its process is gone.
        (request(), answer(TAKEN, "another"), Treatment.REFUSE),
        (request(expires_at_ms=NOW), answer(TAKEN, "another"), Treatment.REMOVE),
        # Answered; the process died before it could remove the request.
        (request(), answer(DONE), Treatment.LEAVE),
        (request(), answer(FAILED), Treatment.LEAVE),
        (request(), answer(DONE, answered_at_ms=LONG_AGO), Treatment.REMOVE),
        # Answered and not fetched yet.
        (None, answer(DONE), Treatment.LEAVE),
        (None, answer(DONE, answered_at_ms=LONG_AGO + 1), Treatment.LEAVE),
        (None, answer(DONE, answered_at_ms=LONG_AGO), Treatment.REMOVE),
        # The client has withdrawn it while it was being taken.
        (None, answer(TAKEN), Treatment.LEAVE),
        (None, answer(TAKEN, answered_at_ms=LONG_AGO), Treatment.REMOVE),
        # Neither can be read.
        (None, None, Treatment.REMOVE),
    ],
)
def test_what_is_done_about_a_request(
    asked: Request | None, answered: Answer | None, expected: Treatment
) -> None:
    assert choose_treatment(asked, answered, US, NOW) is expected


# -- in the store


def test_a_request_is_found_answered_and_removed(
    requests: Requests, backend: MemoryBackend
) -> None:
    requests.ask(request())
    requests.ask(request())

    assert requests.tokens() == (TOKEN,)
    assert requests.request(TOKEN) == request()
    assert requests.answer(TOKEN) is None

    requests.tell(answer(TAKEN))
    assert requests.request(TOKEN) == request()
    requests.tell(answer(DONE))

    assert requests.answer(TOKEN) == answer(DONE)
    assert requests.request(TOKEN) is None
    assert requests.tokens() == (TOKEN,)

    requests.remove(TOKEN)
    requests.remove(TOKEN)
    assert requests.tokens() == ()
    assert backend.list(PATHS.requests) == ()


def test_a_request_is_addressed_to_one_process_and_expires() -> None:
    wanted = Wanted(RequestKind.SAVEPOINT, name="before", drain=True)

    made = wanted.addressed(TOKEN, US, 5_000, " (the API)")

    assert (made.token, made.holder, made.name, made.drain) == (TOKEN, US, "before", True)
    assert made.expires_at_ms - made.asked_at_ms == 5_000
    assert made.asked_by.endswith(" (the API)")


def test_two_requests_cannot_have_one_token(requests: Requests) -> None:
    requests.ask(request())

    with pytest.raises(Conflict):
        requests.ask(request(holder="another"))


def test_what_cannot_be_read_is_not_there(requests: Requests, backend: MemoryBackend) -> None:
    backend.put(PATHS.asked(TOKEN), b"damaged")
    backend.put(PATHS.answer(TOKEN), b"damaged")

    assert requests.tokens() == (TOKEN,)
    assert requests.request(TOKEN) is None
    assert requests.answer(TOKEN) is None


# -- aborts


def test_an_abort_keeps_its_number_and_its_reason(requests: Requests) -> None:
    asked = structs.replace(
        request(),
        kind=RequestKind.ABORT,
        name=None,
        abort=Abort(checkpoint_id=CheckpointId(7), reason="why"),
    )

    requests.ask(asked)

    assert requests.request(TOKEN) == asked


@pytest.mark.parametrize("text", ["too slow", "  too slow ", "x" * REASON_MAX, "größer"])
def test_a_reason_is_kept_without_outer_blanks(text: str) -> None:
    assert abort_reason(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        ("x" * (REASON_MAX + 1), "at most 500"),
        ("a\nb", "control characters"),
        ("\x1b[2J", "control characters"),
    ],
)
def test_a_reason_that_cannot_be_shown_in_one_line_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--reason: .*{said}"):
        abort_reason(text, "--reason")

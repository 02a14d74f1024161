"""What the errors of obstore mean; what they look like in the field is in tests/contract."""

import pytest
from obstore import exceptions

from cutwater.store.backends.object_store_errors import Failure, failure_of, words


def said(status: int) -> Exception:
    text = f"Error performing PUT http://h/b in 1ms - Server returned non-2xx status code: {status}"
    return exceptions.GenericError(text)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (FileNotFoundError(), Failure.ABSENT),
        (exceptions.PermissionDeniedError(), Failure.REFUSED),
        (exceptions.NotSupportedError(), Failure.REFUSED),
        (said(400), Failure.REFUSED),
        (said(408), Failure.LOST),
        (said(409), Failure.NOT_NOW),
        (said(429), Failure.NOT_NOW),
        (said(500), Failure.LOST),
        (said(503), Failure.LOST),
        (exceptions.GenericError("HttpError { kind: Connect, source: … }"), Failure.NOT_NOW),
        (exceptions.GenericError("HttpError { kind: Timeout, source: … }"), Failure.LOST),
        (exceptions.GenericError("something new"), Failure.LOST),
    ],
)
def test_what_is_not_understood_counts_as_lost(error: Exception, failure: Failure) -> None:
    assert failure_of(error) is failure


def test_an_error_is_told_in_one_line_without_what_was_signed() -> None:
    error = exceptions.GenericError(
        "Error performing GET https://h/b?sig=hidden in 1ms -\n  HTTP error.\n\nDebug source:\nX"
    )

    assert words(error) == "Error performing GET https://h/b in 1ms - HTTP error"


def test_the_words_of_the_server_are_enough() -> None:
    error = exceptions.GenericError("… <Error><Code>SlowDown</Code><Message>Wait.</Message>…")

    assert words(error) == "SlowDown: Wait"


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal"])
def test_a_machine_that_gives_no_credentials_is_told_as_such(host: str) -> None:
    error = exceptions.GenericError(f"Error performing PUT http://{host}/token in 1s - HTTP error")

    assert words(error).startswith("no credentials were found in the environment")

"""Every error: a code of its own, something to do next, and the same error after pickling."""

import inspect
import pickle
import re

import pytest

from cutwater import errors
from cutwater.errors import (
    ConfigError,
    CutwaterError,
    InvariantBroken,
    ProtocolViolation,
    UserError,
)


def family(error: type[CutwaterError]) -> list[type[CutwaterError]]:
    """The class and everything that is derived from it, wherever it is defined."""
    return [error, *(found for child in error.__subclasses__() for found in family(child))]


ALL = family(CutwaterError)
RAISED = [error for error in ALL if error not in {CutwaterError, UserError}]


def example(error: type[CutwaterError]) -> CutwaterError:
    """An error with a different text for each of its arguments."""
    parameters = list(inspect.signature(error).parameters)
    return error(*(f"text of {name}" for name in parameters))


@pytest.mark.parametrize("error", ALL)
def test_an_error_has_a_stable_code(error: type[CutwaterError]) -> None:
    assert re.fullmatch(r"CW-\d{3}", error.code)


def test_no_two_errors_have_the_same_code() -> None:
    assert len({error.code for error in ALL}) == len(ALL)


@pytest.mark.parametrize("error", RAISED)
def test_an_error_that_is_raised_says_what_to_do_next(error: type[CutwaterError]) -> None:
    assert error.next_step.endswith(".")
    assert str(example(error)).endswith(error.next_step)


@pytest.mark.parametrize("error", ALL)
def test_an_error_survives_pickling(error: type[CutwaterError]) -> None:
    """Errors cross process boundaries on Spark."""
    before = example(error)

    after = pickle.loads(pickle.dumps(before))

    assert type(after) is error
    assert str(after) == str(before)
    assert vars(after) == vars(before)


@pytest.mark.parametrize("error", ALL)
def test_an_error_says_whether_trying_again_may_help(error: type[CutwaterError]) -> None:
    assert error.retryable in {True, False}


@pytest.mark.parametrize("error", ALL)
def test_an_error_is_drawn_in_the_tree_of_its_module(error: type[CutwaterError]) -> None:
    assert errors.__doc__ is not None
    assert error.__name__ in errors.__doc__


def test_an_error_prints_its_code_its_message_and_the_next_step() -> None:
    assert str(ConfigError("retained", "0 is below 1")) == (
        "[CW-101] retained: 0 is below 1. Change the option and start again; nothing was written."
    )


def test_an_error_without_a_next_step_prints_its_code_and_message() -> None:
    assert str(UserError("no such file.")) == "[CW-100] no such file."


def test_a_broken_invariant_keeps_its_number() -> None:
    broken = InvariantBroken("I4", "an event came twice")

    assert broken.message == "I4 does not hold: an event came twice."
    assert isinstance(broken, ProtocolViolation)


def test_an_option_that_cannot_work_is_the_users_to_change() -> None:
    wrong = ConfigError("retained", "0 is below 1")

    assert isinstance(wrong, UserError)
    assert (wrong.option, wrong.reason) == ("retained", "0 is below 1")

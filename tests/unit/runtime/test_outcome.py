"""How a generation ended: what is a lack of resources, and what is not."""

import errno

import pytest

from cutwater.errors import Unavailable
from cutwater.ids import StepId
from cutwater.runtime.outcome import End, Outcome, is_starved


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_lack_of_what_the_system_shares_out_is_known_through_all_that_it_caused(
    number: int,
) -> None:
    lack = OSError(number, "none left")

    assert is_starved(lack)
    assert is_starved(caused(Unavailable("log/1", "none left"), caused(RuntimeError(), lack)))


def test_other_errors_are_none() -> None:
    endless = RuntimeError()
    endless.__cause__ = endless

    assert not is_starved(None)
    assert not is_starved(OSError(errno.ENOSPC, "No space left on device"))
    assert not is_starved(caused(RuntimeError(), ValueError()))
    assert not is_starved(endless)


def test_a_step_that_lacks_something_has_failed_like_any() -> None:
    lack = OSError(errno.EMFILE, "Too many open files")

    assert Outcome(End.FAILED, error=lack).is_starved
    assert not Outcome(End.FAILED, StepId("totals"), lack).is_starved
    assert not Outcome(End.FENCED, error=lack).is_starved

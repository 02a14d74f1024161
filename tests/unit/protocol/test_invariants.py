"""The check of a numbered promise: silent while it holds, loud when it does not."""

import pytest

from cutwater.errors import InvariantBroken
from cutwater.protocol.invariants import invariant


def test_a_promise_that_holds_is_silent() -> None:
    invariant(True, "I4", "never read")


def test_a_broken_promise_names_its_number_and_the_contradiction() -> None:
    with pytest.raises(InvariantBroken) as caught:
        invariant(False, "I4", "an event came twice")

    assert (caught.value.invariant, caught.value.reason) == ("I4", "an event came twice")

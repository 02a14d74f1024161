"""What a machine remembers, as plain values, so that "has not changed" can be tested.

Everything reachable from the machine counts, private or not. Left out are functions (the tables of
handlers hold bound methods, which would lead back to the machine) and values that never change.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass


def state_of(thing: object) -> object:
    """Take a machine apart; equal results mean equal states."""
    if callable(thing):
        return "function"
    if isinstance(thing, Mapping):
        return [(state_of(key), state_of(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | deque):
        return [state_of(one) for one in thing]
    if isinstance(thing, set):
        return frozenset(thing)
    if is_dataclass(thing):
        return [(one.name, state_of(getattr(thing, one.name))) for one in fields(thing)]
    if type(thing).__module__.startswith("cutwater.") and hasattr(thing, "__dict__"):
        return [(name, state_of(value)) for name, value in vars(thing).items()]
    return thing

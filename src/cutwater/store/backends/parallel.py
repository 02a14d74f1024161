"""Several calls to a store at once: an object store answers each late, and many as fast as one.

Bounded here by threads, and in a backend by its own limit, however many callers there are.
"""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")

AT_ONCE: Final = 8
"""How many calls one caller has under way at the same time."""


def each(call: Callable[[T], Result], items: Collection[T]) -> list[Result]:
    """Call with each item, several at once; return the results in the order of the items.

    After the first error what has not begun is left out, what has begun is waited for, and the
    error is raised.
    """
    if len(items) < 2:
        return [call(one) for one in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="store") as pool:
        return list(pool.map(call, items))

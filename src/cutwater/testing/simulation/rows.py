"""The rows of the simulated world and the functions its steps apply to them.

Every function has two independent forms: `apply`, which gets one micro-batch at a time and keeps
state, and `whole`, which computes the result of a whole history at once. The second is the oracle:
what sinks must hold, whichever faults occurred.

Rows carry their origin and a sequence number; a step adds its name to the origin, so the path of a
row is part of it, and two branches of a diamond always differ.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MS_PER_ROW: Final = 10
WINDOW_MS: Final = 40
DELAY_MS: Final = 15

State = dict[str, Any]


class Row(NamedTuple):
    """One row: its origin, its number there, and its value."""

    origin: str
    seq: int
    value: tuple[Any, ...] = ()


class Token(NamedTuple):
    """A random number that a step drew for a row, and the number it drew for the row before."""

    now: int
    before: int | None


Rows = Sequence[Row]
Apply = Callable[[str, State, Mapping[int, Rows], random.Random], list[Row]]
Whole = Callable[[str, Sequence[Rows]], list[Row]]


@dataclass(frozen=True, slots=True)
class StepFunction:
    """What a step computes, batch by batch and all at once.

    Attributes:
        apply: One micro-batch: (step, state, rows by input ordinal, random) to rows; changes
            the state.
        whole: The whole history: (step, rows per input) to rows.
        event_time: Whether results appear only when the watermark passes.
    """

    name: str
    apply: Apply
    whole: Whole
    event_time: bool = False


def _tagged(step: str, row: Row, *more: object) -> Row:
    return Row(f"{row.origin}>{step}", row.seq, (*row.value, *more))


def _map(step: str, state: State, batch: Mapping[int, Rows], _: random.Random) -> list[Row]:
    """Pass rows on, and keep state whose content recurs after it was deleted."""
    state["odd batches"] = not state.get("odd batches", False)
    return [_tagged(step, row) for rows in batch.values() for row in rows]


def _map_whole(step: str, inputs: Sequence[Rows]) -> list[Row]:
    return [_tagged(step, row) for rows in inputs for row in rows]


def _dropped(row: Row) -> bool:
    return row.seq % 3 == 1


def _filter(step: str, _: State, batch: Mapping[int, Rows], __: random.Random) -> list[Row]:
    return [_tagged(step, row) for rows in batch.values() for row in rows if not _dropped(row)]


def _filter_whole(step: str, inputs: Sequence[Rows]) -> list[Row]:
    return [_tagged(step, row) for rows in inputs for row in rows if not _dropped(row)]


def _count(step: str, state: State, batch: Mapping[int, Rows], _: random.Random) -> list[Row]:
    result = []
    for rows in batch.values():
        for row in rows:
            state[row.origin] = state.get(row.origin, 0) + 1
            result.append(_tagged(step, row, state[row.origin]))
    return result


def _count_whole(step: str, inputs: Sequence[Rows]) -> list[Row]:
    result = []
    for rows in inputs:
        for origin in sorted({row.origin for row in rows}):
            same = (row for row in rows if row.origin == origin)
            result += [_tagged(step, row, number) for number, row in enumerate(same, 1)]
    return result


def _join(step: str, state: State, batch: Mapping[int, Rows], _: random.Random) -> list[Row]:
    inputs = state["inputs"]
    waiting: dict[int, dict[int, Row]] = state.setdefault("waiting", {})
    result = []
    for ordinal, rows in batch.items():
        for row in rows:
            sides = waiting.setdefault(row.seq, {})
            if ordinal in sides:
                result.append(Row(step, row.seq, ("twice", ordinal)))
            sides[ordinal] = row
            if len(sides) == inputs:
                del waiting[row.seq]
                result.append(Row(step, row.seq, tuple(sides[side] for side in sorted(sides))))
    return result


def _join_whole(step: str, inputs: Sequence[Rows]) -> list[Row]:
    sides = [{row.seq: row for row in rows} for rows in inputs]
    common = sorted(set(sides[0]).intersection(*sides[1:]))
    return [Row(step, seq, tuple(side[seq] for side in sides)) for seq in common]


def _token(step: str, state: State, batch: Mapping[int, Rows], rng: random.Random) -> list[Row]:
    result = []
    for rows in batch.values():
        for row in rows:
            token = Token(rng.randrange(10**9), state.get(row.origin))
            state[row.origin] = token.now
            result.append(_tagged(step, row, token))
    return result


def _token_whole(step: str, inputs: Sequence[Rows]) -> list[Row]:
    return [_tagged(step, row, Token(0, None)) for rows in inputs for row in rows]


def _window(step: str, state: State, batch: Mapping[int, Rows], _: random.Random) -> list[Row]:
    """Tumbling windows as Spark computes them.

    A batch adds its rows, emits the windows that the watermark of its start has passed, and then
    moves the watermark; the next batch, which may have no data, emits what the new watermark has
    passed.
    """
    open_windows: dict[int, list[int]] = state.setdefault("open", {})
    newest: dict[int, int] = state.setdefault("newest", {})
    watermark = state.setdefault("watermark", -1)
    for ordinal, rows in batch.items():
        for row in rows:
            at_ms = row.seq * MS_PER_ROW
            newest[ordinal] = max(newest.get(ordinal, 0), at_ms)
            if at_ms > watermark:
                window = open_windows.setdefault(at_ms // WINDOW_MS * WINDOW_MS, [0, 0])
                window[0] += 1
                window[1] += row.seq
    done = sorted(start for start in open_windows if start + WINDOW_MS <= watermark)
    if len(newest) == state["inputs"]:
        state["watermark"] = max(watermark, min(newest.values()) - DELAY_MS)
    return [Row(step, start, tuple(open_windows.pop(start))) for start in done]


def _window_whole(step: str, inputs: Sequence[Rows]) -> list[Row]:
    if not all(inputs):
        return []
    watermark = min(max(row.seq for row in rows) for rows in inputs) * MS_PER_ROW - DELAY_MS
    totals: dict[int, list[int]] = {}
    for rows in inputs:
        for row in rows:
            total = totals.setdefault(row.seq * MS_PER_ROW // WINDOW_MS * WINDOW_MS, [0, 0])
            total[0] += 1
            total[1] += row.seq
    return [
        Row(step, start, tuple(total))
        for start, total in sorted(totals.items())
        if start + WINDOW_MS <= watermark
    ]


def owes_batch(state: State) -> bool:
    """Return whether the watermark has passed a window that no batch has emitted yet."""
    watermark = state.get("watermark", -1)
    return any(start + WINDOW_MS <= watermark for start in state.get("open", ()))


def without_tokens(row: Row) -> Row:
    """Return the row with its random parts blanked, also inside joined rows."""
    return Row(row.origin, row.seq, tuple(_blank(part) for part in row.value))


def _blank(part: object) -> object:
    if isinstance(part, Token):
        return Token(0, None)
    return without_tokens(part) if isinstance(part, Row) else part


FUNCTIONS: Final = {
    function.name: function
    for function in (
        StepFunction("map", _map, _map_whole),
        StepFunction("filter", _filter, _filter_whole),
        StepFunction("count", _count, _count_whole),
        StepFunction("join", _join, _join_whole),
        StepFunction("token", _token, _token_whole),
        StepFunction("window", _window, _window_whole, event_time=True),
    )
}

"""The event-time watermark of each input of a query, kept through restarts.

A query with several `withWatermark` calls has one watermark per call. Spark follows the smallest
of them, and keeps only that one in its logs. After a restart every call starts at 0 again, so an
input that is ahead of the others, or delivers nothing more, holds back all windows. Therefore a
snapshot contains the watermark of each call beside Spark's own files; Spark ignores it:

    watermarks.json    [{"column":"at","delay_ms":1000,"streams":["orders"],…},…]

The first batch of a query after a restart restores them. A snapshot without the file is from an
earlier version or an adopted query; then Spark's own behaviour applies (PROTOCOL.md, rule F9b;
docs/adr/0033).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.logs import replace_text
from cutwater.spark.jvm.internals import Internals

FILE: Final = "watermarks.json"


class EventTime(msgspec.Struct, frozen=True):
    """What one `withWatermark` call is applied to.

    Attributes:
        delay_ms: How late a row may be.
        streams: What the query reads there, in the order of the plan: sources by name, channels
            by name and ordinal.
        origins: The outside sources that those rows come from, through all channels.
    """

    column: str
    delay_ms: int
    streams: tuple[str, ...]
    origins: tuple[str, ...]


class InputWatermark(EventTime, frozen=True):
    """One line of the file: a call and its watermark; None before its first row."""

    watermark_ms: int | None = None


_LINES: Final = msgspec.json.Decoder(tuple[InputWatermark, ...])


def read_watermarks(directory: Path) -> tuple[InputWatermark, ...]:
    """Read the file of a snapshot; empty if there is none."""
    file = directory / FILE
    try:
        return _LINES.decode(file.read_bytes())
    except FileNotFoundError:
        return ()
    except msgspec.DecodeError as error:
        raise RecoveryError(f"{file} does not tell the inputs' watermarks: {error}.") from error


def carry_over(
    stored: Sequence[InputWatermark], now: Sequence[EventTime]
) -> tuple[int | None, ...]:
    """Return the watermark of each call in the current plan in ms; None for one that is unknown.

    A plan over the same streams is matched call by call. In any other plan, a call is matched by
    its column and the sources of its rows, if the match is unique. A call that is new or ambiguous
    starts without a watermark: that holds results back until a row arrives, and never makes a row
    late. A changed delay is applied to the newest row that was seen.
    """
    if [(watermark.column, watermark.streams) for watermark in stored] == [
        (call.column, call.streams) for call in now
    ]:
        return tuple(_at(old, new) for old, new in zip(stored, now, strict=True))
    before, after = Counter(map(_key, stored)), Counter(map(_key, now))
    known = {_key(watermark): watermark for watermark in stored}
    return tuple(
        _at(known[_key(call)], call) if before[_key(call)] == after[_key(call)] == 1 else None
        for call in now
    )


def _key(call: EventTime) -> tuple[str, tuple[str, ...]]:
    return call.column, call.origins


def _at(old: InputWatermark, new: EventTime) -> int | None:
    if old.watermark_ms is None:
        return None
    return old.watermark_ms + old.delay_ms - new.delay_ms


class QueryWatermarks:
    """The watermarks of one query's inputs, from the restore onward."""

    def __init__(self, internals: Internals, calls: Mapping[str, EventTime]) -> None:
        """Follow the calls of a plan, by the ids that Spark has given them."""
        self._internals = internals
        self._calls = dict(calls)
        self._restored: dict[str, int] = {}
        self._is_put_back = True

    def restore(self, directory: Path) -> None:
        """Load the watermarks of a snapshot; the query has not started."""
        found = carry_over(read_watermarks(directory), tuple(self._calls.values()))
        pairs = zip(self._calls, found, strict=True)
        self._restored = {call: at_ms for call, at_ms in pairs if at_ms is not None}
        self._is_put_back = not self._restored

    def put_back(self, query: StreamingQuery) -> None:
        """Set the restored watermarks in the query; called in each batch, acts only in the first.

        Spark computes new watermarks when a batch ends. Until then it uses the smallest one, which
        is in its own log.
        """
        if not self._is_put_back:
            self._internals.set_watermarks(query, self._restored)
            self._is_put_back = True

    def note(self, query: StreamingQuery | None, directory: Path) -> tuple[str, ...]:
        """Write the file for the last committed batch; no batch may end meanwhile.

        Returns the names of the files written: none for a plan without event time.
        """
        if not self._calls:
            return ()
        found = {} if query is None else self._internals.watermarks(query)
        lines = [
            InputWatermark(
                **msgspec.structs.asdict(event_time),
                watermark_ms=_newest(self._restored.get(call), found.get(call)),
            )
            for call, event_time in self._calls.items()
        ]
        replace_text(directory / FILE, msgspec.json.encode(lines).decode())
        return (FILE,)


def _newest(*moments_ms: int | None) -> int | None:
    return max((moment_ms for moment_ms in moments_ms if moment_ms is not None), default=None)

"""A channel as a source of a streaming query: Spark's own Parquet scan over what may be read.

Alignment consists of limiting the end of a batch: it reads up to the first barrier that the step
has not released (rule F6). An offset counts Events, so passing a barrier does not change it (F23);
its `tick` makes Spark run a batch without rows that is owed after a restore (F22).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from cutwater.ids import InputId, ReaderId
from cutwater.runtime.batch_size import BatchBudget
from cutwater.runtime.channel import Channel, Signal
from cutwater.spark.jvm.channel_scan import ChannelScan, columns_of
from cutwater.spark.jvm.empty_batch_source import NoDataBatchDetector
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.jvm.native_source import NativeSource, decode_offset, encode_offset

_KEYS: Final = frozenset({"channel", "input", "position", "tick"})
IDLE_WAIT_S: Final = 5.0
"""How long an idle query waits inside its own poll; any relevant change wakes it."""


class ChannelOffset:
    """The position of a step on one input, as its query's offset log records it."""

    __slots__ = ("position", "tick")

    def __init__(self, position: int = 0, tick: int = 0) -> None:
        self.position = position
        self.tick = tick

    @classmethod
    def parse(cls, text: str | None, source: InputId) -> "ChannelOffset":
        """Read an offset of this input, and refuse one of another; None is the beginning."""
        if text is None:
            return cls()
        owner = f"input {source}"
        found = decode_offset(text, _KEYS, owner)
        if (found["channel"], found["input"]) != (source.channel, source.ordinal):
            decode_offset("", _KEYS, f"{owner}, which is not {text},")
        return cls(found["position"], found["tick"])

    def text(self, source: InputId) -> str:
        return encode_offset(
            {
                "channel": source.channel,
                "input": source.ordinal,
                "position": self.position,
                "tick": self.tick,
            }
        )


class ReadOptions(NamedTuple):
    """How a channel is read.

    Attributes:
        max_batch_bytes: The most that one batch takes; None for no limit.
        keys: The channel carries updates, and a batch keeps only the newest row for each value of
            these columns. Empty for appended rows.
    """

    max_batch_bytes: int | None = None
    keys: tuple[str, ...] = ()


class ChannelSource(NativeSource):
    """One input of one step that runs as a streaming query."""

    def __init__(
        self,
        internals: Internals,
        channel: Channel,
        reader: ReaderId,
        signal: Signal,
        options: ReadOptions,
    ) -> None:
        self.channel = channel
        super().__init__(internals, columns_of(channel.form.schema))
        self.reader = reader
        self._signal = signal
        self._options = options
        self._scan = ChannelScan(internals, channel, options.keys)
        self._tick = 0
        self._initial = 0
        self._planned = 0
        self._detector = NoDataBatchDetector()
        self.budget = BatchBudget()
        self.siblings: Sequence[ChannelSource] = (self,)
        self.between_batches: Callable[[], bool] = lambda: False

    def describe(self) -> str:
        return f"channel {self.channel.id}"

    @property
    def needed_by_itself(self) -> frozenset[str]:
        """The columns that identify the newest rows; all columns if a key is not a column name."""
        keys, columns = frozenset(self._options.keys), frozenset(self.channel.form.schema.names)
        return keys if keys <= columns else columns

    def frame(self) -> DataFrame:
        """Return the stream, with the producer's watermark: Spark accepts none from a source."""
        frame = super().frame()
        watermark = self.channel.form.watermark
        return frame if watermark is None else frame.withWatermark(*watermark)

    def begin(self, text: str | None, *, owes_batch: bool) -> None:
        """Set where the query starts, and whether a batch without rows must run first.

        A query without an offset of this input starts at the position of its reader: a step that
        was added to a channel does not start at the channel's beginning.
        """
        self._initial = self.channel.position(self.reader).position
        offset = self._parse(text)
        self._planned = offset.position
        self._tick = offset.tick + owes_batch

    def latest(self, start: str | None) -> str | None:
        """Return where the next batch ends, waiting a while if no input has anything."""
        wants_batch = self.between_batches()
        seen = self._signal.count
        offset = self._parse(start)
        if self is self.siblings[0] and self._detector.must_force(start, wants_batch=wants_batch):
            self._tick = offset.tick + 1
        self._planned = offset.position
        if not wants_batch and self._tick == offset.tick and not self._any_news():
            self._signal.wait(seen, IDLE_WAIT_S)
        if self._signal.closed:
            return start
        limit = self.channel.limit(self.reader)
        end = ChannelOffset(
            self.channel.end_within(
                offset.position, limit, self.budget.within(self._options.max_batch_bytes)
            ),
            max(self._tick, offset.tick),
        )
        if start is None and end.position == self._initial and end.tick == 0:
            return None
        return end.text(self.reader.input)

    def _parse(self, text: str | None) -> ChannelOffset:
        if text is None:
            return ChannelOffset(self._initial)
        return ChannelOffset.parse(text, self.reader.input)

    def _any_news(self) -> bool:
        return any(source.has_news() for source in self.siblings)

    def has_news(self) -> bool:
        """Return whether a batch would find Events here."""
        return self.channel.limit(self.reader) > self._planned

    def batch(self, start: str | None, end: str) -> Any:
        first = self._parse(start).position
        last = self._parse(end).position
        return self._scan.rows(first, last, streaming=True)._jdf

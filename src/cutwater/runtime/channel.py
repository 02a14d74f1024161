"""A channel of a running generation: the index, the files of its Events, and the waiting threads.

`protocol.channel_log` decides; this module makes the decisions safe for threads and carries them
out on disk. A producer appends under its step's lock and waits for room outside of it; appends and
releases wake the consumers. The channel's own lock is the innermost one: no other lock is taken
while it is held.

`restore_channel` builds a channel from a cut: the Events in flight, and each reader at its own
position. Rows in flight were written by the code of their time; if today's code reads a column that
they lack, nothing starts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq

from cutwater.errors import RecoveryError, RunError
from cutwater.ids import ChannelId, CheckpointId, ReaderId, StepId
from cutwater.protocol.channel_log import Bound, ChannelLog, Placed
from cutwater.protocol.cut import Cut, RecordedEvent
from cutwater.protocol.messages import REFERENCE, Event, Message, Place, Watermark
from cutwater.runtime.channel_file import ChannelFile
from cutwater.store.backends.directories import status, try_to_remove_tree
from cutwater.store.blobs.blobs import Blobs
from cutwater.tasks import THREADS, Tasks


class Signal:
    """Wakes one step when an input has changed or the step must end."""

    def __init__(self, tasks: Tasks = THREADS) -> None:
        self._changed = tasks.condition()
        self._count = 0
        self._closed = False

    @property
    def count(self) -> int:
        """How many changes there were; read it before checking the inputs, pass it to `wait`."""
        return self._count

    @property
    def closed(self) -> bool:
        return self._closed

    def notify(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wake the waiting threads; from now on `wait` returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, seen: int, timeout_s: float) -> None:
        """Return when the count is no longer `seen`, when closed, or after the timeout.

        May return early; the caller checks its inputs again in any case.
        """
        with self._changed:
            if not self._closed and self._count == seen:
                self._changed.wait(timeout_s)


class Columns(Protocol):
    """The columns of a channel's rows, in the engine's own description of them."""

    names: list[str]


class Reference(Protocol):
    """How an engine reads a channel whose Events refer to rows instead of holding them."""

    def size_bytes(self, channel: "Channel", event: Event) -> int:
        """Return how many bytes an Event refers to."""
        ...

    def check(self, channel: "Channel", events: Iterable[Event]) -> None:
        """Refuse Events whose rows are no longer there; raises a `CutwaterError`."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelSchema:
    """The schema of a channel's rows, their watermark, and where they come from.

    Attributes:
        schema: The columns, all of them nullable and without metadata.
        watermark: The event-time column and its delay (such as `10000 milliseconds`), which
            every reader applies again; None for no watermark.
        merged_by: The step, this or an upstream one, that reads several channels, or several
            streams with watermarks; empty for none. The rows of the slower one come late.
        origins: The outside sources of the rows, through any number of upstream steps.
    """

    schema: Columns
    watermark: tuple[str, str] | None = None
    merged_by: str = ""
    origins: tuple[str, ...] = ()


class Channel:
    """One channel in one generation. All methods may be called by any thread."""

    def __init__(
        self,
        log: ChannelLog,
        directory: Path,
        form: ChannelSchema,
        bound: Bound,
        on_control: Callable[[ChannelId], None],
        *,
        tasks: Tasks = THREADS,
    ) -> None:
        """Open a channel in a directory of its own; `log` is empty, or as restored.

        Args:
            bound: The max lag of the slowest reader.
            on_control: Called with the channel's name after every control message, and after every
                Event that an attempt may record; must not block.
        """
        self.id = log.channel
        self.form = form
        self.carried = form.schema
        self.reference: Reference | None = None
        self.directory = directory
        self.data = directory / "data"
        self._log = log
        self._bound = bound
        self._on_control = on_control
        self._lock = tasks.condition()
        self._signals: dict[ReaderId, Signal] = {}
        entries = directory / "log"
        for needed in (self.data, entries, self.empty):
            needed.mkdir(parents=True, exist_ok=True)
        self._file = ChannelFile(entries)
        self._rows = 0

    @property
    def empty(self) -> Path:
        """A directory without files, which a scan of no Events reads."""
        return self.directory / "empty"

    def carry(self, columns: Columns) -> None:
        """Write only these columns; called before the first write or read."""
        self.carried = columns

    def subscribe(self, reader: ReaderId, signal: Signal) -> None:
        """Wake this signal when something changes for the reader."""
        self._signals[reader] = signal

    def restore(self, log: ChannelLog) -> None:
        """Replace the index, before the first write or read; the files are in place."""
        self._log = log

    # -- the producer

    def append(self, message: Message) -> None:
        """Called under the producer's lock."""
        with self._lock:
            place = self._log.append(message)
            self._file.append(place, message)
            if isinstance(message, Event):
                self._rows += message.rows
            noticed = self._log.is_protected or not isinstance(message, Event)
        if noticed:
            self._on_control(self.id)
        for signal in self._signals.values():
            signal.notify()

    def has_room(self, *, lets_barrier_out: bool) -> bool:
        """Say whether one more Event may be appended."""
        with self._lock:
            has_room = self._log.has_room(self._bound, lets_barrier_out=lets_barrier_out)
            reference = self.reference
        if reference is None or lets_barrier_out or not has_room:
            return has_room
        # What an Event refers to counts, not the list: a source that runs no job is soon far ahead.
        while True:
            held = self.held()
            try:
                return self._referred_bytes(held) < self._bound.size_bytes
            except RunError:
                # A reader may have freed one of them meanwhile.
                if held == self.held():
                    raise

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a reader has moved, or until the timeout."""
        with self._lock:
            self._lock.wait(timeout_s)

    # -- the readers

    def limit(self, reader: ReaderId) -> int:
        """Return the position up to which the reader may read now."""
        with self._lock:
            return self._log.limit(reader).position

    def end_within(self, start: int, limit: int, size_bytes: int | None) -> int:
        """Return the end of a batch that begins at `start`: the limit, or less to stay in the size.

        A batch always takes at least one Event, however large.
        """
        if self.reference is not None:
            most = self._bound.size_bytes if size_bytes is None else size_bytes
            return self._end_by_reference(self.reference, start, limit, most)
        if size_bytes is None or limit - start <= 1:
            return limit
        with self._lock:
            begin = self._log.place(start).log_bytes
            end = start + 1
            while end < limit and self._log.place(end + 1).log_bytes - begin <= size_bytes:
                end += 1
        return end

    def _end_by_reference(
        self, reference: Reference, start: int, limit: int, size_bytes: int
    ) -> int:
        left, end = size_bytes, start
        for event in self.events(start, limit):
            left -= reference.size_bytes(self, event)
            if left < 0 and end > start:
                break
            end += 1
        return end

    def place(self, position: int) -> Place:
        with self._lock:
            return self._log.place(position)

    def read_bytes(self, start: Place, end: Place) -> int:
        """Return how many bytes a reader reads between two places."""
        if self.reference is None:
            return end.log_bytes - start.log_bytes
        return self._referred_bytes(self.events(start.position, end.position))

    def _referred_bytes(self, events: Iterable[Event]) -> int:
        assert self.reference is not None
        return sum(self.reference.size_bytes(self, event) for event in events)

    def held(self) -> tuple[Event, ...]:
        """Return all Events that some reader may still read."""
        with self._lock:
            return self._log.read(self._log.base, self._log.end)

    def events(self, start: int, end: int) -> tuple[Event, ...]:
        """Leave out the Events that are freed already.

        After a restore Spark requests the range of the last committed batch once and discards it;
        a slower reader of the channel may have kept a part of it.
        """
        with self._lock:
            base = self._log.base.position
            if end <= base:
                return ()
            return self._log.read(self._log.place(max(start, base)), self._log.place(end))

    def paths(self, events: Iterable[Event]) -> list[Path]:
        return [self.data / name for event in events for name in event.files]

    def problem(self, events: Iterable[Event]) -> str:
        """Say which file of Events has changed since it was appended; empty for none."""
        for event in events:
            found = [(path, status(path)) for path in self.paths([event])]
            for path, facts in found:
                if facts is None:
                    return f"{path} is gone"
            size_bytes = sum(facts.st_size for _, facts in found if facts is not None)
            if size_bytes != event.size_bytes:
                names = ", ".join(str(path) for path, _ in found)
                return f"{names} has {size_bytes} bytes instead of {event.size_bytes}"
        return ""

    def read(self, start: Place, end: Place) -> tuple[Event, ...]:
        with self._lock:
            return self._log.read(start, end)

    def advance(self, reader: ReaderId, place: Place) -> None:
        """Move the reader's position when its batch is appended."""
        with self._lock:
            self._log.advance(reader, place)
            self._lock.notify_all()

    def settle(self, reader: ReaderId) -> None:
        """Record that the reader's batch is committed, and free what is no longer needed."""
        with self._lock:
            self._log.settle(reader)
        self.free()

    def release(self, reader: ReaderId, checkpoint_id: CheckpointId) -> None:
        """Let the reader pass a barrier."""
        with self._lock:
            self._log.release(reader, checkpoint_id)
        if reader in self._signals:
            self._signals[reader].notify()

    def news(self, reader: ReaderId) -> tuple[Place, tuple[Placed, ...]]:
        """Return the place up to which the reader would record, and its new control messages."""
        with self._lock:
            return self._log.recordable(reader), self._log.news(reader)

    # -- freeing

    def protect(self, checkpoint_id: CheckpointId, reader: ReaderId, start: Place) -> None:
        """Keep Events from `start` on while an attempt records or uploads them.

        The reader gets a notice: Events that are here already count for the size of a recording.
        """
        with self._lock:
            self._log.protect(checkpoint_id, reader, start)
        self._on_control(self.id)

    def unprotect(self, checkpoint_id: CheckpointId, reader: ReaderId) -> None:
        with self._lock:
            self._log.unprotect(checkpoint_id, reader)
        self.free()

    def free(self) -> None:
        """Delete the files of Events that are no longer needed."""
        with self._lock:
            freed = self._log.free()
            self._file.free(self._log.base, self._log.controls_freed)
        for directory in {Path(name).parts[0] for event in freed for name in event.files}:
            try_to_remove_tree(self.data / directory)

    def close(self) -> None:
        with self._lock:
            self._file.close()
            self._lock.notify_all()

    # -- facts

    def watermark_ms(self, reader: ReaderId, position: int) -> int | None:
        """Return the newest watermark before a position of the reader."""
        with self._lock:
            return self._log.watermark_ms(reader, position)

    def backlogs(self) -> Mapping[ReaderId, Bound]:
        with self._lock:
            return {reader: self._log.backlog(reader) for reader in self._signals}

    def position(self, reader: ReaderId) -> Place:
        with self._lock:
            return self._log.position(reader)

    @property
    def rows(self) -> int:
        return self._rows


def restore_channel(channel: Channel, readers: Iterable[ReaderId], cut: Cut, blobs: Blobs) -> None:
    """Restore the Events in flight of a channel, and the position of every reader."""
    places = {reader: cut.snapshots[reader.step].positions[reader.input] for reader in readers}
    lowest = min(places.values())
    slowest = next(reader for reader in places if places[reader] == lowest)
    recorded = _recorded(cut, slowest)
    log = ChannelLog(channel.id, places, base=lowest, events=[entry.event for entry in recorded])
    # Watermarks are not recorded with Events: the producer's newest follows all of the Events.
    watermark_ms = cut.snapshots[StepId(channel.id)].watermark_ms
    if watermark_ms is not None:
        log.append(Watermark(watermark_ms))
    channel.restore(log)
    files = {
        channel.data / name: ref
        for entry in recorded
        for name, ref in zip(entry.event.files, entry.blobs, strict=True)
    }
    blobs.fetch_files(files)


def _recorded(cut: Cut, reader: ReaderId) -> tuple[RecordedEvent, ...]:
    parts = cut.snapshots[reader.step].in_flight
    return next((part.events for part in parts if part.input == reader.input), ())


def check_in_flight(channel: Channel, reader: ReaderId, read: frozenset[str] | None) -> None:
    """Refuse rows in flight that lack a column the reader needs; `read` is None for all columns."""
    wanted = frozenset(channel.form.schema.names) if read is None else read
    begin = channel.position(reader)
    events = channel.events(begin.position, channel.limit(reader))
    refers = {Path(name).name == REFERENCE for event in events for name in event.files}
    if refers - {channel.reference is not None}:
        raise RecoveryError(
            f"channel {channel.id} holds rows in flight that were written with materialize="
            f"{channel.reference is not None}, which has changed since. Run the code as it was "
            "until a savepoint is made, which has no rows in flight, and go on from that."
        )
    if channel.reference is not None:
        channel.reference.check(channel, events)
        return
    for file in channel.paths(events):
        missing = wanted - set(pq.read_schema(file).names)
        if missing:
            message = (
                f"channel {channel.id} holds rows in flight without the columns "
                f"{', '.join(sorted(missing))}, which step {reader.step} reads now. Run the code "
                "as it was until a savepoint is made, which has no rows in flight, and go on "
                "from that."
            )
            raise RecoveryError(message)

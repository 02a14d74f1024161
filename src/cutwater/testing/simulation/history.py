"""What really happened, recorded outside the protocol and never read by it.

The checkers compare every decided cut and every commit with this record. It is kept per
generation, since what a fenced process does to its own scratch affects no other process.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cutwater.ids import BatchId, ChannelId, CheckpointId, Generation, InputId, StepId
from cutwater.testing.simulation.rows import Row


class Wrong(Exception):
    """A checker found that the protocol broke a promise."""


@dataclass(slots=True)
class BatchRecord:
    """One appended batch: where it ended, what it produced, the state it left."""

    batch: BatchId
    ends: Mapping[InputId, int]
    offset: int
    output: int
    state_sha256: str


@dataclass(slots=True)
class History:
    """The record of one run."""

    batches: dict[tuple[Generation, StepId], dict[BatchId, BatchRecord]] = field(
        default_factory=dict
    )
    events: dict[tuple[Generation, ChannelId], dict[int, tuple[Row, ...]]] = field(
        default_factory=dict
    )
    started: list[tuple[Generation, CheckpointId]] = field(default_factory=list)
    ended: Counter[tuple[Generation, CheckpointId]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    farthest: Counter[StepId] = field(default_factory=Counter)
    verdict: Wrong | None = None

    def object(self, message: str) -> None:
        """Note a broken promise; the first one counts.

        Nothing is raised: this may be called inside the driver, which handles most exceptions.
        """
        self.verdict = self.verdict or Wrong(message)

    def begin(self, generation: Generation, step: StepId, record: BatchRecord) -> None:
        self.batches[(generation, step)] = {record.batch: record}

    def batch(self, generation: Generation, step: StepId, record: BatchRecord) -> None:
        """Note an appended batch; object if the step had appended one of that number before."""
        known = self.batches[(generation, step)]
        if record.batch in known:
            self.object(f"{step} appended batch {record.batch} twice in generation {generation}")
        known[record.batch] = record
        self.farthest[step] = max(self.farthest[step], record.batch)

    @property
    def progress(self) -> int:
        """Grows with every commit and every new batch, not with batches that are run again."""
        return self.counts["commit points"] + self.farthest.total()

    def event(
        self, generation: Generation, channel: ChannelId, position: int, rows: tuple[Row, ...]
    ) -> None:
        """Note an Event; object if it has no rows, or its ordinal was used for other rows."""
        known = self.events.setdefault((generation, channel), {})
        if not rows:
            self.object(f"{channel} got an Event without rows")
        if known.get(position, rows) != rows:
            self.object(f"{channel} has two Events at @{position}")
        known[position] = rows

    def read(
        self, generation: Generation, channel: ChannelId, position: int, rows: tuple[Row, ...]
    ) -> None:
        """Compare what a consumer reads with what was appended."""
        if self.events[(generation, channel)].get(position) != rows:
            self.object(f"the Event at @{position} of {channel} was not read as it was appended")

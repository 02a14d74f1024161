"""Rewinds among everything else that happens to sinks: they come, go, move away and come back.

The oracle knows nothing of the code: at every checkpoint it notes what each table showed. After a
rewind that was done every table shows that again; after one that was refused none has changed.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operations.crashing_pipeline import (
    SINKS,
    CrashingPipeline,
    VersionedTable,
    run_generation,
)
from tests.unit.operations.crashing_pipeline import CrashingBackend as Store

from cutwater.errors import MoveRefused, RecoveryError
from cutwater.ids import CheckpointId
from cutwater.operations.offline_pipeline import candidates
from cutwater.store.records.targets import SinkTargets, StoredTarget

A, B = SINKS
PLACES = ("a", "elsewhere", "b")
HOMES: dict[str, SinkTargets] = {
    "both": {A: StoredTarget("memory", "a"), B: StoredTarget("memory", "b")},
    "moved": {A: StoredTarget("memory", "elsewhere"), B: StoredTarget("memory", "b")},
    "alone": {B: StoredTarget("memory", "b")},
}


@dataclass
class Watched:
    """A pipeline, all tables that it ever had, and what they showed at each checkpoint."""

    pipeline: CrashingPipeline = field(default_factory=lambda: CrashingPipeline(Store()))
    tables: dict[str, VersionedTable] = field(default_factory=dict)
    shown: dict[CheckpointId, dict[str, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = {place: VersionedTable(self.pipeline.backend, A) for place in PLACES}
        self.settle("both")

    def settle(self, home: str) -> None:
        self.pipeline.targets = HOMES[home]
        self.pipeline.tables = {sink: self.tables[one.uri] for sink, one in HOMES[home].items()}

    @property
    def now(self) -> dict[str, tuple[int, ...]]:
        return {place: table.versions[-1] for place, table in self.tables.items()}

    def run(self, home: str, points: list[bool]) -> None:
        """Run with these targets, one checkpoint at a time; as before if that is refused."""
        before = self.pipeline.targets
        self.settle(home)
        for is_point in points:
            try:
                run_generation(self.pipeline, [is_point])
            except RecoveryError:
                self.pipeline.targets = before
                self.pipeline.tables = {
                    sink: self.tables[target.uri] for sink, target in before.items()
                }
                continue
            head = self.pipeline.opened().log.read().head
            assert head is not None
            self.shown[head.checkpoint_id] = self.now

    def rewind(self, choice: int) -> None:
        store = self.pipeline.opened()
        found = candidates(store, store.log.read())
        if not found:
            return
        wanted = found[choice % len(found)].decision.checkpoint_id
        before = self.now
        try:
            self.pipeline.rewind(choice)
        except MoveRefused:
            assert self.now == before
            return
        assert self.now == self.shown[wanted]
        head = self.pipeline.opened().log.read().head
        assert head is not None
        self.shown[head.checkpoint_id] = self.now


RUN = st.tuples(st.sampled_from(sorted(HOMES)), st.lists(st.booleans(), min_size=1, max_size=2))


@settings(deadline=None)
@given(st.lists(RUN | st.integers(0, 20), min_size=2, max_size=9))
def test_a_rewind_shows_every_table_as_it_was_or_changes_none(
    actions: list[tuple[str, list[bool]] | int],
) -> None:
    watched = Watched()
    for action in actions:
        if isinstance(action, int):
            watched.rewind(action)
        else:
            watched.run(*action)

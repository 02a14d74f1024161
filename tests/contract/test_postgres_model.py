"""A PostgreSQL sink against a naive model, by seed: commits, repeats, rewinds, foreign writes.

Another program writes to the same table all the while. A rewind may remove what this sink wrote and
no program has changed since; everything else stays, or the rewind is refused. Rows are read
by psql. `CUTWATER_SEEDS=500 pytest tests/contract/test_postgres_model.py` searches longer.
"""

import os
import random
from dataclasses import dataclass, field

import psycopg
import pytest
from pyspark.sql.types import LongType, StructType
from tests.servers.postgres import Database, PostgresServer

from cutwater import sinks
from cutwater.errors import SinkError, Superseded
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import SinkContext
from cutwater.sinks.postgres.staging import Staging
from cutwater.sinks.postgres.table import OpenPostgresTable
from cutwater.sinks.postgres.types import columns_of

PIPELINE = PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10")
SINK = SinkId("rows")
SEEDS = int(os.environ.get("CUTWATER_SEEDS", "3"))
STEPS = 40

Values = tuple[int | None, int | None]
"""What a row has besides its key: v and x."""


@dataclass
class Write:
    """One row that the sink wrote: when, in place of what, and whether it is still the same."""

    slot: int
    before: Values | None
    untouched: bool = True


@dataclass
class Keyed:
    """What an upsert has to show: one row for each key."""

    rows: dict[int, Values] = field(default_factory=dict)
    writes: dict[int, list[Write]] = field(default_factory=dict)

    def put(self, slot: int, batch: list[dict[str, int]]) -> None:
        for row in batch:
            key, before = row["k"], self.rows.get(row["k"])
            v, x = before or (None, None)
            done = self.writes.setdefault(key, [])
            if "v" in row or before is None:
                if not done or done[-1].slot < slot:
                    done.append(Write(slot, before))
                done[-1].untouched = True
            self.rows[key] = (row.get("v", v), row.get("x", x))

    def meddle(self, key: int, v: int) -> None:
        self.rows[key] = (v, self.rows[key][1])
        if self.writes.get(key):
            self.writes[key][-1].untouched = False

    def undo(self, slot: int) -> dict[int, list[Write]]:
        """Return what was written after a slot, by key."""
        later = {
            key: [write for write in done if write.slot > slot] for key, done in self.writes.items()
        }
        return {key: done for key, done in later.items() if done}

    def may_go_back(self, slot: int) -> bool:
        return all(done[-1].untouched for done in self.undo(slot).values())

    def go_back(self, slot: int) -> None:
        for key, done in self.undo(slot).items():
            before = done[0].before
            if before is None:
                del self.rows[key]
            else:
                self.rows[key] = before
            self.writes[key] = [write for write in self.writes[key] if write.slot <= slot]
            for write in self.writes[key][-1:]:
                write.untouched = True

    @property
    def shown(self) -> list[list[str]]:
        return sorted([str(key), *map(_text, values)] for key, values in self.rows.items())


@dataclass
class Appended:
    """What an append has to show: rows, each with the slot it came with; 0 if not by us."""

    rows: list[tuple[int, int, Values]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    slots: set[int] = field(default_factory=set)

    def put(self, slot: int, batch: list[dict[str, int]]) -> None:
        self.slots.add(slot)
        self.rows += [(slot, row["k"], (row.get("v"), row.get("x"))) for row in batch]

    def meddle(self, key: int, v: int) -> None:
        self.touched |= {slot for slot, k, _ in self.rows if k == key}
        self.rows = [(0 if k == key else s, k, (v, x) if k == key else (w, x))
                     for s, k, (w, x) in self.rows]  # fmt: skip

    def may_go_back(self, slot: int) -> bool:
        return not any(number > slot for number in self.touched & self.slots)

    def go_back(self, slot: int) -> None:
        self.rows = [row for row in self.rows if row[0] <= slot]
        self.slots = {one for one in self.slots if one <= slot}

    @property
    def shown(self) -> list[list[str]]:
        return sorted([str(key), *map(_text, values)] for _, key, values in self.rows)


def _text(value: int | None) -> str:
    return "<null>" if value is None else str(value)


class World:
    """A sink, its table, and another writer."""

    def __init__(self, database: Database, chance: random.Random) -> None:
        self.database = database
        self.chance = chance
        self.keys = ("k",) if chance.random() < 0.7 else ()
        self.model: Keyed | Appended = Keyed() if self.keys else Appended()
        primary = " PRIMARY KEY" if self.keys else ""
        database.query(f"CREATE TABLE t (k bigint{primary}, v bigint, x bigint)")
        self.slot = self.floor = 0
        self.batch = 0
        self.waiting: list[tuple[Committable, list[dict[str, int]]]] = []
        self.done: list[tuple[int, list[Committable]]] = []
        self.undone: dict[int, int] = {}
        self.committed: set[int] = set()
        self.imaged: frozenset[str] | None = None
        self.open()

    def open(self) -> None:
        write = "upsert" if self.keys else "append"
        target = sinks.postgres(self.database.dsn, table="t", write=write, keys=self.keys)
        opened = target.open(SinkContext(None, PIPELINE, SINK))
        assert isinstance(opened, OpenPostgresTable)
        self.sink = opened

    def stage(self) -> None:
        wide = self.chance.choices(["k", "kv", "kvx"], [1, 6, 3])[0]
        if not self.keys and wide == "k":
            wide = "kv"
        ids = self.chance.sample(range(8), self.chance.randint(1, 5))
        rows = [dict(zip(wide, (key, *self.some()), strict=False)) for key in ids]
        schema = StructType()
        for name in wide:
            schema.add(name, LongType())
        columns = columns_of(schema, SINK)
        staging = Staging("_cutwater", PIPELINE, SINK)
        place = (Generation(1), BatchId(self.batch))
        self.batch += 1
        with psycopg.connect(self.database.dsn) as connection:
            table = staging.make(connection, place, self.sink.target, columns, self.keys)
            statement = staging.copy_statement(table, list(wide))
            with connection.cursor().copy(statement.encode()) as copy:
                for task in (6, 7):
                    for row in rows:
                        copy.write_row([*row.values(), task])
        staged = self.sink.describe_staged(table, place, [(7, len(rows), 10, "0" * 64)])
        assert staged is not None
        self.waiting.append((staged, rows))

    def some(self) -> tuple[int, int]:
        return self.chance.randint(0, 99), self.chance.randint(0, 99)

    def commit(self) -> None:
        before, self.slot = self.slot, self.slot + self.chance.randint(1, 2)
        staged = [committable for committable, _ in self.waiting]
        assert self.sink.commit(permit(self.slot), staged) == str(self.slot)
        imaged = {name for _, rows in self.waiting for name in rows[0]}
        if staged and self.keys:
            if self.imaged not in {None, frozenset(imaged)}:
                self.floor = before
            self.imaged = frozenset(imaged)
        for _, rows in self.waiting:
            self.model.put(self.slot, rows)
        self.done.append((self.slot, staged))
        self.committed.add(self.slot)
        self.waiting = []

    def repeat(self) -> None:
        for slot, staged in [row for row in self.done[-2:] if row[0] >= self.floor]:
            assert self.sink.commit(permit(slot), staged) == str(slot)

    def come_late(self) -> None:
        acted = {slot for slot, _ in self.done}
        missed = next((number for number in range(1, self.slot) if number not in acted), None)
        if missed is not None:
            with pytest.raises(Superseded):
                self.sink.commit(permit(missed), [committable for committable, _ in self.waiting])

    def go_back(self) -> None:
        version = self.chance.choice([0, *(slot for slot, _ in self.done)])
        look = self.sink.look_back(str(version) if version else None)
        wanted = version or -1
        # What a version showed is lost if something of it was taken back later.
        lost = any(slot <= version < by for slot, by in self.undone.items())
        may = version >= self.floor and not lost and self.model.may_go_back(version)
        assert (look.obstacle is None) is may, (version, look.obstacle)
        slot = self.slot + 1
        if not may:
            with pytest.raises(SinkError, match="leave-sinks"):
                self.sink.restore(permit(slot), str(version) if version else None)
            return
        assert self.sink.restore(permit(slot), str(wanted) if version else None) == str(slot)
        gone = {number for number in self.committed if number > version}
        self.undone |= dict.fromkeys(gone - self.undone.keys(), slot)
        self.model.go_back(version)
        self.slot = slot
        self.done.append((slot, []))

    def meddle(self) -> None:
        ids = {int(key) for key, *_ in self.model.shown}
        if ids and self.chance.random() < 0.5:
            key, v = self.chance.choice(sorted(ids)), 1000 + self.slot
            self.database.query(f"UPDATE t SET v = {v} WHERE k = {key}")
            self.model.meddle(key, v)
        else:
            key = 100 + len(ids) + self.batch * 10
            self.database.query(f"INSERT INTO t VALUES ({key}, 1)")
            if isinstance(self.model, Keyed):
                self.model.rows[key] = (1, None)
            else:
                self.model.rows.append((0, key, (1, None)))

    def retain(self) -> None:
        kept = [slot for slot, _ in self.done][-self.chance.randint(1, 5) :]
        if kept:
            self.sink.retain(
                Generation(1),
                {str(number) for number in kept},
                [committable for committable, _ in self.waiting],
            )
            self.floor = max(self.floor, kept[0])

    def check(self) -> None:
        found = sorted(self.database.query("SELECT k, v, x FROM t"))
        assert found == self.model.shown


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_the_table_holds_what_it_must(postgres: PostgresServer, seed: int) -> None:
    chance = random.Random(seed)
    world = World(postgres.make_database(f"model {seed}"), chance)
    acts = {
        world.stage: 8,
        world.commit: 6,
        world.repeat: 2,
        world.come_late: 1,
        world.go_back: chance.randint(2, 8),
        world.meddle: chance.randint(0, 2),
        world.retain: 1,
        world.open: 1,
    }
    for _ in range(STEPS):
        act = chance.choices(list(acts), list(acts.values()))[0]
        act()
        if act not in (world.stage, world.open):
            world.check()

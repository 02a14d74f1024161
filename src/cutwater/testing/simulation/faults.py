"""What goes wrong in the simulated world, and how often it really did.

Every seed draws its own mix (a swarm): some runs have many crashes and no damage, others the
reverse. A fault counts as delivered only when it changed something.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from cutwater.ids import BatchId, StepId
from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.checkpoint.events import Acknowledged, CoordinatorEvent
from cutwater.protocol.cut import CheckpointKind, Cut, StepSnapshot
from cutwater.store.backends.directories import exists
from cutwater.store.records.requests import Request, RequestKind
from cutwater.testing.simulation import mishaps
from cutwater.testing.simulation.mishaps import RequestFaults
from cutwater.testing.simulation.process import Process

if TYPE_CHECKING:
    from cutwater.testing.simulation.world import World

KINDS: Final = (
    "crash",
    "crash in recovery",
    "crash during an effect",
    "crash while a batch is owed",
    "crash soon after a rewind",
    "step failure",
    "pause",
    "store out of reach",
    "ack lost",
    "ack repeated late",
    "ack from a stranger",
    "torn object",
    "missing object",
    "corrupt object",
    "table down",
    "attempt cancelled",
    "savepoint requested",
    "full checkpoint requested",
    "stop with savepoint",
    "stop requested",
    "request through the store",
    "rewind",
    "end of input",
    "slow step",
    "new data after the end",
    "store full",
    "channel file lost",
    "query stopped from outside",
    "foreign commit",
    "vacuum",
    "commit lost by its table",
    "table renamed",
    *mishaps.KINDS,
)


class Faults:
    """The faults of one run."""

    def __init__(self, world: "World", chosen: Collection[str] = ()) -> None:
        self.world = world
        rng = world.rng
        drawn = set(chosen) or {kind for kind in KINDS if rng.random() < 0.5}
        self.enabled = set() if world.calm else drawn
        self.rate = rng.choice((0.0003, 0.0008, 0.0015, 0.003))
        self.ack_loss = rng.choice((0.0, 0.02, 0.1))
        self.late: list[tuple[int, Acknowledged]] = []
        self._posts: dict[int, Callable[[CoordinatorEvent], None]] = {}
        self.requests = RequestFaults(world, self.enabled)
        self._actions: dict[str, Callable[[], bool]] = {
            "crash": self._crash,
            "crash in recovery": self._crash_in_recovery,
            "crash during an effect": self._crash_during_effect,
            "step failure": self._step_failure,
            "pause": self._pause,
            "store out of reach": self._out_of_reach,
            "torn object": lambda: self._damage("torn"),
            "missing object": lambda: self._damage("missing"),
            "corrupt object": lambda: self._damage("corrupt"),
            "table down": self._table_down,
            "ack from a stranger": self._stranger,
            "attempt cancelled": self._cancel,
            "savepoint requested": lambda: self._request(CheckpointKind.SAVEPOINT),
            "full checkpoint requested": lambda: self._request(CheckpointKind.FULL),
            "stop with savepoint": lambda: self._request(CheckpointKind.SAVEPOINT, drain=True),
            "stop requested": self._stop,
            "request through the store": self._request_through_store,
            "rewind": self._rewind,
            "end of input": self._end_of_input,
            "slow step": self._slow,
            "store full": self._full,
            "channel file lost": self._lose_channel_file,
            "query stopped from outside": self._stop_query,
            "foreign commit": self._foreign_commit,
            "vacuum": self._vacuum,
            "commit lost by its table": self._lose_commit,
            "table renamed": self._rename_table,
        }

    def count(self, kind: str) -> None:
        self.world.history.counts[f"fault: {kind}"] += 1
        self.world.trace(None, "fault", kind)

    def maybe(self, elapsed_ms: int) -> None:
        """Inject a fault, at random, as often as the time that has passed wants."""
        rng = self.world.rng
        self._deliver_late()
        self.requests.arrive()
        if rng.random() >= self.rate * elapsed_ms:
            return
        kind = rng.choice(sorted(self.enabled & set(self._actions)) or ["crash"])
        if self._actions[kind]():
            self.count(kind)

    # -- processes

    def _crash(self) -> bool:
        process = self.world.current
        if process is None or not process.running:
            return False
        process.die()
        return True

    def _crash_in_recovery(self) -> bool:
        process = self.world.current
        if process is None or process.running or not process.alive:
            return False
        process.die()
        return True

    def _crash_during_effect(self) -> bool:
        process = self.world.current
        if process is None or not process.running:
            return False
        effects = [task for task in self.world.scheduler.tasks_of(process) if task.name == "effect"]
        if not effects:
            return False
        process.die()
        return True

    def _step_failure(self) -> bool:
        process = self.world.current
        if process is None or not process.running:
            return False
        process.steps[self.world.rng.choice(sorted(process.steps))].fails = True
        return True

    def _pause(self) -> bool:
        process = self.world.current
        if process is None or process.paused or not process.alive:
            return False
        process.paused = True
        longest_ms = self.world.rng.choice((900, 900, 30_000))
        pause_ms = self.world.rng.randint(20, longest_ms)
        self.world.wake_at[process.number] = self.world.now_ms + pause_ms
        return True

    def after_start(self, process: Process) -> None:
        """Kill a driver soon after it has started from a rewind, perhaps."""
        world = self.world
        kind = "crash soon after a rewind"
        rewound = process.number > 0 and world.processes[process.number - 1].is_rewind
        if rewound and kind in self.enabled and not world.healing and world.rng.random() < 0.6:
            world.timers.kill_at[process.number] = world.now_ms + world.rng.randint(50, 600)

    def decision_written(self, cut: Cut) -> None:
        """Kill the process right after a cut in which a step owes a batch, also while healing."""
        kind, world = "crash while a batch is owed", self.world
        owed = any(snapshot.owes_batch for snapshot in cut.snapshots.values())
        exhausted = all(
            stream.total is not None and int(cut.snapshots[name].offsets[name]) >= stream.total
            for name, stream in world.streams.items()
        )
        chance, most = (0.9, 6) if exhausted else (0.3, 2)
        seldom = world.history.counts[f"fault: {kind}"] < most
        if not world.calm and owed and seldom and world.rng.random() < chance:
            world.kill_soon = True
        # The record of the commit is the next write, and the one that must be tried again.
        fills_up = "store full" in self.enabled and not world.healing
        if fills_up and world.rng.random() < 0.02 and self._full():
            self.count("store full")

    # -- messages

    def post(
        self, process: Process, post: Callable[[CoordinatorEvent], None]
    ) -> Callable[[CoordinatorEvent], None]:
        """Return what the steps of a process report through: acknowledgements may be lost."""
        self._posts[process.number] = post

        def send(event: CoordinatorEvent) -> None:
            if not isinstance(event, Acknowledged) or not self._ack_lost(event):
                post(event)

        return send

    def _ack_lost(self, ack: Acknowledged) -> bool:
        """Return whether an acknowledgement is lost; it may also arrive twice."""
        rng = self.world.rng
        if not self.world.healing and rng.random() < self.ack_loss:
            if "ack lost" in self.enabled:
                self.count("ack lost")
                return True
            if "ack repeated late" in self.enabled:
                self.late.append((self.world.now_ms + rng.randint(5, 1500), ack))
        return False

    def _stranger(self) -> bool:
        """Send an acknowledgement of a step that does not take part."""
        process = self.world.current
        if process is None or not process.running or not process.open_attempts:
            return False
        attempt = self.world.rng.choice(sorted(process.open_attempts))
        snapshot = StepSnapshot(StepId("stranger"), attempt, process.generation, BatchId(0))
        self._posts[process.number](Acknowledged(snapshot, self.world.clock.now_ms()))
        return True

    def _deliver_late(self) -> None:
        """Deliver repeated acknowledgements, from any process, to the current coordinator."""
        due = [delayed for delayed in self.late if delayed[0] <= self.world.now_ms]
        if not due:
            return
        self.late = [delayed for delayed in self.late if delayed[0] > self.world.now_ms]
        for _, ack in due:
            process = self.world.current
            if process is not None and process.running:
                self._posts[process.number](ack)
                self.count("ack repeated late")

    # -- the store and the tables

    def _out_of_reach(self) -> bool:
        if self.world.store.out_of_reach:
            return False
        self.world.reach_again(out_of_reach_ms=self._a_while())
        return True

    def _a_while(self) -> int:
        """Return a time: usually short, sometimes longer than anything is tried again."""
        rng = self.world.rng
        return rng.randint(10, rng.choice((500, 500, 6_000)))

    def _full(self) -> bool:
        if self.world.store.full:
            return False
        self.world.room_again(full_ms=self._a_while())
        return True

    def _lose_channel_file(self) -> bool:
        """Delete a file of a channel that some reader has yet to read."""
        process = self.world.current
        if process is None or not process.running:
            return False
        assert process.built is not None
        unread = sorted(
            file
            for channel in process.built.channels.values()
            for reader in channel.backlogs()
            for file in channel.paths(
                channel.events(channel.position(reader).position, channel.limit(reader))
            )
        )
        if not unread:
            return False
        file = self.world.rng.choice(unread)
        was_there = exists(file)
        file.unlink(missing_ok=True)
        return was_there

    def _stop_query(self) -> bool:
        """Stop the query of a source, as `query.stop()` in the user's program does."""
        process = self.world.current
        if process is None or not process.running:
            return False
        sources = [
            source
            for source in self.world.topology.sources
            if not process.steps[source].machine.finished
        ]
        if not sources:
            return False
        process.steps[self.world.rng.choice(sources)].stopped = True
        return True

    def _foreign_commit(self) -> bool:
        table = self.world.tables[self.world.rng.choice(sorted(self.world.tables))]
        table.append_foreign(self.world.now_ms)
        return True

    def _vacuum(self) -> bool:
        """Delete old versions of a table as another program, except those of the newest cuts."""
        world = self.world
        sound = world.sound_decisions()
        if len(sound) < 2:
            return False
        table = world.tables[world.rng.choice(sorted(world.tables))]
        shown = [world.shown_at(decision).get(table.sink) for decision in sound[-2:]]
        return table.vacuum(min(int(version or 0) for version in shown))

    def _lose_commit(self) -> bool:
        """Roll a table back before its last commit, while an older cut can still be restored."""
        world = self.world
        plain = sorted(sink for sink, table in world.tables.items() if not table.shows_batches)
        sound = world.sound_decisions()
        if not plain or len(sound) < 2:
            return False
        table = world.tables[world.rng.choice(plain)]
        if len(table.made) < 2:
            return False
        lost = int(table.made[max(table.made)])
        held = [world.shown_at(decision) for decision in sound]
        if not any(int(shown.get(table.sink) or 0) < lost for shown in held):
            return False
        table.lose_last_commit()
        return True

    def _rename_table(self) -> bool:
        """Give the host of a table another name; the table is the same."""
        table = self.world.tables[self.world.rng.choice(sorted(self.world.tables))]
        table.address = f"host-{self.world.now_ms}/{table.sink}"
        return True

    def _damage(self, how: str) -> bool:
        """Damage an object of the head while an older cut stays sound, and kill the process."""
        world, rng = self.world, self.world.rng
        if world.store.out_of_reach:
            return False
        sound = world.sound_decisions()
        head = world.judged.log.read().head
        if len(sound) < 2 or head is None or sound[-1].slot != head.slot:
            return False
        cut = world.read_cut(head)
        spared = world.read_cut(sound[-2])
        assert cut is not None
        assert spared is not None
        names = {blob.name for blob in cut.blobs(committed=False)}
        names -= {blob.name for blob in spared.blobs(committed=False)}
        committed = world.paths.committed(head.slot)
        names |= {world.paths.manifest(head.checkpoint_id), committed}
        name = rng.choice(sorted(names & set(world.store.by_name)))
        self._break(name, "missing" if name == committed else how)
        world.damaged = True
        for process in world.processes:
            process.die()
        return True

    def _break(self, name: str, how: str) -> None:
        objects, rng = self.world.store.by_name, self.world.rng
        data = objects[name]
        if how == "missing":
            del objects[name]
        elif how == "torn":
            objects[name] = data[: rng.randrange(len(data))]
        else:
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 + rng.randrange(255)
            objects[name] = bytes(changed)

    def _table_down(self) -> bool:
        world = self.world
        table = world.tables[world.rng.choice(sorted(world.tables))]
        if table.down:
            return False
        table.down = True
        world.table_up_at[table.sink] = world.now_ms + world.rng.randint(20, 900)
        return True

    # -- operators

    def _cancel(self) -> bool:
        process = self.world.current
        if process is None or not process.running or not process.open_attempts:
            return False
        process.abort(self.world.rng.choice((None, *sorted(process.open_attempts))))
        return True

    def _request(self, kind: CheckpointKind, *, drain: bool = False) -> bool:
        process = self.world.current
        if process is None or not process.running:
            return False
        name = f"n{self.world.now_ms}" if kind is CheckpointKind.SAVEPOINT else None
        process.request(CheckpointRequest(kind, name, drain), stop=drain)
        if self.world.rng.random() < 0.3:
            process.request(CheckpointRequest(CheckpointKind.FULL), stop=False)
        return True

    def _stop(self) -> bool:
        process = self.world.current
        if process is None or not process.running:
            return False
        supervisor = process.supervisor
        assert supervisor is not None
        checkpoint = self.world.rng.random() < 0.7
        process.plain_stop = True
        process.tasks.start(lambda: supervisor.stop(checkpoint=checkpoint), "operator")
        return True

    def _request_through_store(self) -> bool:
        """Let a client send a request through the store, as the command line does."""
        world, rng = self.world, self.world.rng
        process = world.current
        if process is None or not process.running or process.supervisor is None:
            return False
        kind = rng.choice((RequestKind.CHECKPOINT, RequestKind.SAVEPOINT, RequestKind.STOP))
        named = kind is RequestKind.SAVEPOINT or (kind is RequestKind.STOP and rng.random() < 0.5)
        request = Request(
            token=f"{world.clients:032x}",
            kind=kind,
            holder=process.supervisor.lease.nonce,
            asked_by="an operator",
            asked_at_ms=world.clock.wall_ms(),
            expires_at_ms=world.clock.wall_ms() + rng.choice((300, 3_000, 20_000)),
            full=kind is RequestKind.CHECKPOINT and rng.random() < 0.5,
            name=f"r{world.now_ms}" if named else None,
            drain=kind is RequestKind.STOP and rng.random() < 0.5,
        )
        # A plain stop ends the pipeline also if its checkpoint fails.
        process.plain_stop |= kind is RequestKind.STOP and not (request.name or request.drain)
        world.start_client(request)
        return True

    def _rewind(self) -> bool:
        if not self.world.judged.log.read().decisions or self.world.store.out_of_reach:
            return False
        self.world.start_rewind()
        return True

    def _end_of_input(self) -> bool:
        world = self.world
        open_streams = sorted(
            name for name, stream in world.streams.items() if stream.total is None
        )
        if not open_streams:
            return False
        world.streams[world.rng.choice(open_streams)].end(world.now_ms)
        return True

    def _slow(self) -> bool:
        self.world.slow = not self.world.slow
        process = self.world.current
        if process is not None and process.running:
            for step in process.steps.values():
                step.slow = self.world.is_slow(step.spec.step)
        return True

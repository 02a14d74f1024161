"""The book of attempts: follows what the coordinator hears and orders, for people who ask.

It decides nothing. It outlives generations, so that a status can show what came before a restart.
Written by the loop's thread, read by any.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cutwater.ids import CheckpointId
from cutwater.protocol import coordinator_events as events
from cutwater.protocol.cut import CheckpointKind, Cut
from cutwater.protocol.decisions import DecisionOutcome
from cutwater.spark.clock import now_ms
from cutwater.spark.progress import CheckpointReport

KEPT: Final = 20


@dataclass(slots=True)
class Waiter:
    """Somebody who waits for the checkpoint that was asked for.

    Attributes:
        kind: What was asked for.
        id: The attempt that serves it, once there is one.
        report: What became of it, once that is known.
        done: Set when it is known.
    """

    kind: CheckpointKind
    id: CheckpointId | None = None
    report: CheckpointReport | None = None
    done: threading.Event = field(default_factory=threading.Event)


class AttemptBook:
    """What became of the newest attempts."""

    def __init__(self) -> None:
        """Know of none."""
        self._lock = threading.Lock()
        self._reports: OrderedDict[CheckpointId, CheckpointReport] = OrderedDict()
        self._cuts: dict[CheckpointId, Cut] = {}
        self._slots: dict[int, CheckpointId] = {}
        self._waiters: list[Waiter] = []
        self._last: Waiter | None = None
        self.completed = 0
        self.last_completed: CheckpointId | None = None

    @property
    def reports(self) -> tuple[CheckpointReport, ...]:
        """The newest attempts, oldest first."""
        with self._lock:
            return tuple(
                replace(one, duration_ms=now_ms() - one.started_at_ms)
                if one.status == "IN_PROGRESS"
                else one
                for one in self._reports.values()
            )

    # -- waiting

    def wait_for(self, kind: CheckpointKind) -> Waiter:
        """Begin to wait for the next attempt of this kind to start; ask for it afterwards."""
        waiter = Waiter(kind)
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def follow_last(self) -> None:
        """Follow the next attempt as the one that a stop waits for."""
        self._last = self.wait_for(CheckpointKind.CHECKPOINT)

    @property
    def last_has_ended(self) -> bool:
        """Whether the attempt that a stop waits for has been decided or has failed."""
        last = self._last
        if last is None or last.id is None:
            return False
        with self._lock:
            return self._reports[last.id].status != "IN_PROGRESS"

    def abandon(self, reason: str) -> None:
        """Tell everybody who waits that nothing will come of it; end what is open."""
        with self._lock:
            for checkpoint_id, report in list(self._reports.items()):
                if report.status == "IN_PROGRESS":
                    self._end(checkpoint_id, replace(report, status="FAILED", failure=reason))
            for waiter in self._waiters:
                # A checkpoint that was decided stays one: its commits are repeated by recovery.
                known = self._reports.get(waiter.id) if waiter.id is not None else None
                waiter.report = known or CheckpointReport(
                    CheckpointId(0), "FAILED", 0, waiter.kind.name, failure=reason
                )
                waiter.done.set()
            self._waiters.clear()

    # -- following

    def heard(self, event: events.CoordinatorEvent) -> None:
        """Follow what the coordinator is told."""
        with self._lock:
            match event:
                case events.DecisionMade(checkpoint_id, DecisionOutcome.WRITTEN):
                    self._decided(checkpoint_id)
                case events.CommitRecorded(slot):
                    self._resolve(self._slots.pop(slot, None))
                case _:
                    pass

    def ordered(
        self, command: events.CoordinatorCommand, uploaded: Mapping[CheckpointId, int]
    ) -> None:
        """Follow what the coordinator answers."""
        with self._lock:
            match command:
                case events.ReserveId(checkpoint_id, kind):
                    self._begin(checkpoint_id, kind)
                case events.CreateDecision(slot, cut):
                    self._cuts[cut.checkpoint_id] = cut
                    if cut.commit_point:
                        self._slots[slot] = cut.checkpoint_id
                    report = self._reports[cut.checkpoint_id]
                    self._reports[cut.checkpoint_id] = replace(
                        report,
                        unaligned=not cut.is_aligned,
                        uploaded_bytes=uploaded.get(cut.checkpoint_id, 0),
                        state_bytes=cut.size_bytes,
                        in_flight_bytes=cut.in_flight_bytes,
                        commit_point=cut.commit_point,
                    )
                case events.EndAttempt(checkpoint_id, False, reason, detail):
                    sentence = reason.sentence if reason else "ended"
                    failure = f"{sentence} ({detail})" if detail else sentence
                    report = replace(self._reports[checkpoint_id], status="FAILED", failure=failure)
                    self._end(checkpoint_id, report)
                case _:
                    pass

    def _begin(self, checkpoint_id: CheckpointId, kind: CheckpointKind) -> None:
        self._reports[checkpoint_id] = CheckpointReport(
            checkpoint_id, "IN_PROGRESS", 0, kind.name, started_at_ms=now_ms()
        )
        while len(self._reports) > KEPT:
            self._reports.popitem(last=False)
        for waiter in self._waiters:
            if waiter.id is None:
                waiter.id = checkpoint_id

    def _decided(self, checkpoint_id: CheckpointId) -> None:
        report = self._reports.get(checkpoint_id)
        if report is None:
            return
        self.completed += 1
        self.last_completed = checkpoint_id
        took = now_ms() - report.started_at_ms
        self._reports[checkpoint_id] = replace(report, status="COMPLETED", duration_ms=took)
        cut = self._cuts.pop(checkpoint_id)
        if not cut.commit_point:
            self._resolve(checkpoint_id)

    def _end(self, checkpoint_id: CheckpointId, report: CheckpointReport) -> None:
        took = now_ms() - report.started_at_ms
        self._reports[checkpoint_id] = replace(report, duration_ms=took)
        self._cuts.pop(checkpoint_id, None)
        self._resolve(checkpoint_id)

    def _resolve(self, checkpoint_id: CheckpointId | None) -> None:
        """Tell those who wait what became of their attempt, commits included."""
        for waiter in [one for one in self._waiters if one.id == checkpoint_id]:
            if checkpoint_id is not None:
                waiter.report = self._reports.get(checkpoint_id)
                waiter.done.set()
                self._waiters.remove(waiter)

"""The durable effects of a generation, in the background: each posts its result.

Nothing here decides anything. A task is one of the coordinator's commands. It runs in a pool,
retries where repeating is safe, and always posts an answer, so that the coordinator never waits
forever.
"""

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from cutwater.errors import (
    CutwaterError,
    OutcomeUnknown,
    SinkError,
    StoreError,
    Superseded,
    TargetBehind,
    Unavailable,
)
from cutwater.ids import CheckpointId, Generation, Slot
from cutwater.protocol.checkpoint import events
from cutwater.protocol.checkpoint.failure import FailureReason
from cutwater.protocol.commit import CommitSink, RecordCommit
from cutwater.protocol.cut import BlobRef, Cut, InFlight, RecordedEvent, StepSnapshot
from cutwater.protocol.decisions import Decision, DecisionOutcome
from cutwater.protocol.messages import Barrier
from cutwater.protocol.retention import reusable
from cutwater.protocol.step.events import Stored
from cutwater.protocol.step.in_flight import InFlightRange
from cutwater.runtime.context import RunContext
from cutwater.runtime.step import RunningStep
from cutwater.sinks.commit import Groups, commit_or_explain, recorded_by
from cutwater.sinks.lost_commits import check_targets_hold
from cutwater.sinks.retention import SinkRetention
from cutwater.store.blobs.bundles import BundleMemory
from cutwater.store.maintenance.garbage import Collector
from cutwater.store.records.codecs import Attempt, Committed

_LOG: Final = logging.getLogger(__name__)
_RETRY_S: Final = 0.5
_TRIES: Final = 6
_TRYING_MS: Final = 3_000
"""No further try begins after this: an object store has its own timeouts, which would add up."""

_WORKERS: Final = 8
_ATTEMPTS_REMEMBERED: Final = 100
"""More attempts than can be open or still have uploads running."""


class Effects:
    """Carries out one generation's commands in the background."""

    def __init__(
        self,
        context: RunContext,
        generation: Generation,
        post: Callable[[events.CoordinatorEvent], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Hand each command's result to `post`, which must not block, and defects to `failed`."""
        self._context = context
        self._generation = generation
        self._post = post
        self._failed = failed
        self._clock = context.clock
        self._closed = context.tasks.event()
        self._recording: set[Slot] = set()
        self._groups = Groups(context.sinks)
        self._pool = context.tasks.pool(_WORKERS, "effect")
        self.collector = Collector(context.store, generation, context.options.retained)
        self._retention = SinkRetention(self.collector, context.sinks)
        # By attempt: uploads of an aborted attempt may still run when the next attempt begins.
        self._reusable: OrderedDict[CheckpointId, Mapping[str, BlobRef]] = OrderedDict()
        self._bundles = BundleMemory()
        self._restored: CheckpointId | None = None
        self.uploaded: OrderedDict[CheckpointId, int] = OrderedDict()
        self.superseded: Superseded | None = None
        self.behind: TargetBehind | None = None
        self.doubt: StoreError | None = None

    def note_restored(self, cut: Cut, slot: Slot) -> None:
        """Record the cut that recovery has verified; it and all cuts before it are committed."""
        self.collector.know(cut)
        self.collector.committed_through = slot
        self._restored = cut.checkpoint_id

    def close(self) -> None:
        """Start nothing more, and wait for the running tasks."""
        self._closed.set()
        self._pool.close()

    def start(self, command: events.CoordinatorCommand) -> None:
        match command:
            case events.ReserveId():
                self._submit(lambda: self._reserve(command))
            case events.PublishManifest(cut):
                self._submit(lambda: self._publish(cut))
            case events.CreateDecision():
                self._submit(lambda: self._decide(command))
            case RecordCommit(permit):
                # Requested again while a task is trying it: that task posts the result.
                if permit.slot not in self._recording:
                    self._recording.add(permit.slot)
                    self._submit(lambda: self._record(command))
            case events.CollectGarbage():
                self._submit(self._collect)
            case _:
                message = f"{command} is not an effect"
                raise TypeError(message)

    def _submit(self, task: Callable[[], None]) -> None:
        def run() -> None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - a defect must not vanish in a pool
                self._failed(error)

        if not self._closed.is_set():
            self._pool.submit(run)

    # -- attempts

    def _reserve(self, command: events.ReserveId) -> None:
        at_ms = self._clock.now_ms()
        attempt = Attempt(command.checkpoint_id, self._generation, command.kind, at_ms)
        why = ""
        for _ in self._tries():
            try:
                won = self._context.store.attempts.reserve(attempt)
            except StoreError as error:
                _LOG.info("checkpoint %s: %s", command.checkpoint_id, error)
                why = _why(error)
            else:
                self._post(events.Reserved(command.checkpoint_id, won, self._clock.now_ms()))
                return
        # A full or unavailable store stays so for a while: the status must show it.
        self._post(events.ReserveFailed(command.checkpoint_id, self._clock.now_ms(), why))

    def _tries(self) -> Iterator[None]:
        """Yield once for each try of an operation that may be repeated, with pauses between."""
        end_ms = self._clock.now_ms() + _TRYING_MS
        for number in range(_TRIES):
            if number and (self._clock.now_ms() >= end_ms or self._closed.wait(_RETRY_S)):
                return
            yield

    def begin_attempt(self, barrier: Barrier) -> None:
        """Record which objects the attempt need not store again."""
        incremental = self._context.options.incremental
        # Objects not verified in this generation may be damaged; all later cuts would name them.
        trusted = [
            cut
            for cut in self.collector.cuts
            if cut.generation == self._generation or cut.checkpoint_id == self._restored
        ]
        self._reusable[barrier.checkpoint_id] = reusable(trusted, barrier, incremental=incremental)
        self.uploaded[barrier.checkpoint_id] = 0
        for remembered in (self._reusable, self.uploaded):
            while len(remembered) > _ATTEMPTS_REMEMBERED:
                remembered.popitem(last=False)

    def upload(
        self, step: RunningStep, snapshot: StepSnapshot, ranges: tuple[InFlightRange, ...]
    ) -> None:
        self._submit(lambda: self._upload(step, snapshot, ranges))

    def _upload(
        self, step: RunningStep, snapshot: StepSnapshot, ranges: tuple[InFlightRange, ...]
    ) -> None:
        checkpoint_id = snapshot.checkpoint_id
        blobs = self._context.store.blobs(self._generation, attempt=checkpoint_id)
        # An attempt that ended long ago reuses nothing: no cut will name what it stores.
        known = self._reusable.get(checkpoint_id, {})
        try:
            pinned = step.pinned(checkpoint_id)
            state: tuple[BlobRef, ...] = ()
            if pinned is not None:
                state = blobs.store_tree(pinned.directory, pinned.files, known, self._bundles)
            in_flight = []
            for part in ranges:
                channel = step.wiring.inputs[part.input]
                positions = range(part.start.position, part.end.position)
                found = [
                    channel.read(channel.place(position), channel.place(position + 1))[0]
                    for position in positions
                ]
                names = [channel.data / name for event in found for name in event.files]
                stored = iter(blobs.store_files(names, known))
                recorded = tuple(
                    RecordedEvent(position, event, tuple(islice(stored, len(event.files))))
                    for position, event in zip(positions, found, strict=True)
                )
                in_flight.append(InFlight(part.input, recorded))
        except (StoreError, OSError, CutwaterError) as error:
            # Also raised if the attempt is over and its files are unpinned; the decline is ignored.
            _LOG.info("checkpoint %s of %s: %s", checkpoint_id, step.name, error)
            reason, at_ms = FailureReason.SNAPSHOT_FAILED, self._clock.now_ms()
            declined = events.Declined(
                step.name, self._generation, checkpoint_id, reason, at_ms, _why(error)
            )
            self._post(declined)
            return
        refs = [
            *state,
            *(ref for part in in_flight for event in part.events for ref in event.blobs),
        ]
        new = sum(ref.size_bytes for ref in refs if ref.sha256 not in known)
        self.uploaded[checkpoint_id] = self.uploaded.get(checkpoint_id, 0) + new
        step.times.on_uploaded(checkpoint_id, new)
        step.tell(Stored(checkpoint_id, state, tuple(in_flight)))

    # -- the decision

    def _publish(self, cut: Cut) -> None:
        try:
            sha256 = self._context.store.manifests.publish(cut)
        except StoreError as error:
            _LOG.warning("checkpoint %s: %s", cut.checkpoint_id, error)
            self._post(events.PublishFailed(cut.checkpoint_id, self._clock.now_ms(), _why(error)))
            return
        self._post(events.Published(cut.checkpoint_id, sha256, self._clock.now_ms()))

    def _decide(self, command: events.CreateDecision) -> None:
        cut = command.cut
        entry = Decision(
            command.slot,
            self._generation,
            uuid.uuid4().hex,
            cut.kind,
            cut.checkpoint_id,
            command.manifest_sha256,
            cut.commit_point,
            cut.origin,
        )
        log = self._context.store.log
        try:
            outcome = log.create(entry)
        except StoreError as error:
            self.doubt, outcome = error, DecisionOutcome.UNKNOWN
        if outcome is DecisionOutcome.WRITTEN:
            self.collector.know(cut)
        elif outcome is DecisionOutcome.UNKNOWN:
            self.doubt = self.doubt or log.doubt(command.slot)
        self._post(events.DecisionMade(cut.checkpoint_id, outcome, self._clock.now_ms()))

    # -- sinks

    def commit_sinks(self, commands: Sequence[CommitSink]) -> None:
        """Commit the sinks that one event requests, the sinks of a group together."""
        groups = self._groups.of(commands)
        if groups:
            self._submit(partial(self._commit_all, groups))

    def _commit_all(self, groups: list[tuple[CommitSink, ...]]) -> None:
        """Check all targets first: if a target lacks a commit, no sink commits (F43)."""
        for together in groups:
            try:
                recorded = recorded_by(together)
                check_targets_hold(self._context.store, self._context.sinks, recorded)
            except TargetBehind as error:
                self._refuse(together[0].permit.slot, error)
                return
            except Exception as error:  # noqa: BLE001 - a user's sink may raise anything; retried
                self._report_failed_group(together, error)
                groups = [group for group in groups if group != together]
        for together in groups:
            self._submit(partial(self._commit, together))

    def _refuse(self, slot: Slot, error: TargetBehind) -> None:
        self.behind = error
        _LOG.error("slot %s: %s", slot, error)
        self._post(events.SinkBehind(slot, error.sink, self._clock.now_ms()))

    def _commit(self, together: tuple[CommitSink, ...]) -> None:
        slot = together[0].permit.slot
        try:
            versions = commit_or_explain(self._context.store, self._context.sinks, together)
        except Superseded as error:
            self.superseded = error
            self._post(events.SinkFenced(slot, error.sink, self._clock.now_ms()))
        except TargetBehind as error:
            self._refuse(slot, error)
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything; retried
            self._report_failed_group(together, error)
        else:
            for sink, version in versions.items():
                self._post(events.SinkCommitted(slot, sink, version, self._clock.now_ms()))

    def _report_failed_group(self, together: tuple[CommitSink, ...], error: Exception) -> None:
        slot, sink = together[0].permit.slot, together[0].sink
        culprit = error.sink if isinstance(error, SinkError) else sink
        _LOG.warning("sink %s, slot %s: %s", culprit, slot, error)
        # The sink that failed comes first; every message names it, whichever message is shown.
        waiting = sorted((commit.sink for commit in together), key=lambda name: name != culprit)
        for member in waiting:
            prefix = "" if member == culprit else f"it acts together with sink {culprit}: "
            self._post(events.SinkFailed(slot, member, f"{prefix}{error}", self._clock.now_ms()))

    def _record(self, command: RecordCommit) -> None:
        slot, why = command.permit.slot, ""
        committed = Committed(slot, command.permit.checkpoint_id, command.versions)
        for _ in self._tries():
            try:
                self._context.store.commits.record(committed)
            except (Unavailable, OutcomeUnknown) as error:
                # A record never changes, so writing it again is safe in every case.
                _LOG.info("commit of slot %s: %s", slot, error)
                why = _why(error)
            else:
                self.collector.committed_through = slot
                self._recording.discard(slot)
                self._post(events.CommitRecorded(slot, self._clock.now_ms()))
                return
        self._recording.discard(slot)
        self._post(events.RecordFailed(slot, why, self._clock.now_ms()))

    # -- garbage

    def _collect(self) -> None:
        began_ms = self._clock.now_ms()
        try:
            self._retention.collect()
        except StoreError as error:
            _LOG.warning("retention: %s", error)
        finally:
            at_ms = self._clock.now_ms()
            _LOG.debug("retention took %s ms", at_ms - began_ms)
            self._post(events.GarbageCollected(at_ms))


def _why(error: CutwaterError | OSError) -> str:
    """Return an error's text in a form that fits in brackets."""
    text = error.message if isinstance(error, CutwaterError) else str(error)
    return text.rstrip(".")

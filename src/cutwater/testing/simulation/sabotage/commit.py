"""Mutations of the decision and of what sinks do: prepare, decide, commit, carry, rewind.

See `sabotage` for what they are for.
"""

# Breaking things from inside, in any way, is what this module is for.
# ruff: noqa: ANN401, SLF001

from contextlib import suppress
from dataclasses import replace
from typing import Any

from cutwater.errors import CutwaterError
from cutwater.ids import NO_BATCH, CheckpointId, Slot
from cutwater.operations.rewind import rewind
from cutwater.protocol import recovery
from cutwater.protocol.checkpoint import ledger
from cutwater.protocol.checkpoint.attempt import AckResult, Attempt, Phase, PhaseTrigger
from cutwater.protocol.checkpoint.coordinator import Coordinator
from cutwater.protocol.checkpoint.ledger import CommitPace
from cutwater.protocol.commit import CommitSink, Committer, CommitterState, grant, plan_commit
from cutwater.protocol.cut import Cut
from cutwater.protocol.decisions import DecisionOutcome, uncommitted
from cutwater.protocol.rewind import plan_rewind
from cutwater.protocol.step.machine import Step
from cutwater.runtime.effects import Effects
from cutwater.sinks import lost_commits
from cutwater.sinks.commit import commit_sinks
from cutwater.store.records.attempts import Attempts
from cutwater.store.records.decision_log import DecisionLog
from cutwater.store.records.targets import IDENTITY
from cutwater.testing.simulation import process, sinks
from cutwater.testing.simulation.sabotage.registry import Patch, sabotage
from cutwater.testing.simulation.sinks import SimulatedSink
from cutwater.testing.simulation.tables import SimulatedTable


@sabotage("prepare-since-last-prepare", "F8")
def prepare_since_last_prepare() -> list[Patch]:
    """Let an attempt take the staged rows with it, also when it fails."""
    original = Step._note

    def note(self: Step, *args: Any) -> Any:
        commands = original(self, *args)
        self._staged = []
        return commands

    return [(Step, "_note", note)]


@sabotage("abort-discards-staged", "F8")
def abort_discards_staged() -> list[Patch]:
    """Throw staged rows away when an attempt fails although sources do not rewind."""
    original = Step._on_ended

    def on_ended(self: Step, event: Any) -> Any:
        if not event.decided:
            self._staged = []
        return original(self, event)

    return [(Step, "_on_ended", on_ended)]


@sabotage("decided-rows-again", "F8")
def decided_rows_again() -> list[Patch]:
    """Commit what a snapshot lists without asking whether the last cut held it already."""
    original = plan_commit

    def plan(snapshots: Any, sinks: Any, carried: Any, decided: Any, *rest: Any, **due: Any) -> Any:
        return original(snapshots, sinks, carried, dict.fromkeys(decided, NO_BATCH), *rest, **due)

    return [(ledger, "plan_commit", plan)]


@sabotage("commit-at-unaligned-cuts", "F3")
def commit_at_unaligned_cuts() -> list[Patch]:
    """With several sinks, commit also where data is in flight."""
    original = plan_commit

    def plan(*facts: Any, **due: Any) -> Any:
        plan_any: Any = original
        return plan_any(*facts[:-1], replace(facts[-1], commit_unaligned=True), **due)

    return [(ledger, "plan_commit", plan)]


@sabotage("carried-output-forgotten", "F3")
def carried_output_forgotten() -> list[Patch]:
    """Forget what an earlier cut prepared and did not commit."""
    original = plan_commit

    def plan(snapshots: Any, sinks: Any, carried: Any, *rest: Any, **due: Any) -> Any:
        return original(snapshots, sinks, dict.fromkeys(carried, ()), *rest, **due)

    return [(ledger, "plan_commit", plan)]


@sabotage("commit-every-ignored", "commit_every")
def commit_every_ignored() -> list[Patch]:
    """Commit at every cut, however short the time since the last."""
    return [(CommitPace, "commits", lambda *_: True)]


@sabotage("commit-every-never-over", "commit_every")
def commit_every_never_over() -> list[Patch]:
    """Count the pause from every cut, so that frequent cuts keep sinks waiting."""

    def decided(self: CommitPace, cut: Cut) -> None:
        self._committed_at_ms = cut.started_at_ms

    return [(CommitPace, "decided", decided)]


@sabotage("carried-output-not-restored", "F3")
def carried_output_not_restored() -> list[Patch]:
    """Recover without what the cut carries."""
    original = recovery._standing
    return [(recovery, "_standing", lambda *args: replace(original(*args), carried={}))]


@sabotage("commit-before-the-decision", "I7")
def commit_before_the_decision() -> list[Patch]:
    """Let the sinks act while the decision is only about to be written."""
    original = Effects._decide

    def decide(self: Effects, command: Any) -> None:
        cut: Cut = command.cut
        permit = grant(self._context.pipeline, command.slot, cut.checkpoint_id)
        if cut.commit_point:
            for sink, committables in cut.commit.items():
                with suppress(CutwaterError):
                    commit_sinks(self._context.sinks, [CommitSink(permit, sink, committables)])
        original(self, command)

    return [(Effects, "_decide", decide)]


@sabotage("abort-after-the-decision-is-issued", "F15", faults=("attempt cancelled",))
def abort_after_the_decision_is_issued() -> list[Patch]:
    """Let the deadline end an attempt whose decision is on its way."""
    move = Attempt.move

    def moved(self: Attempt, trigger: PhaseTrigger) -> None:
        if trigger is PhaseTrigger.FAIL:
            self.phase = Phase.FAILED
        else:
            move(self, trigger)

    ended = (Phase.COMPLETED, Phase.FAILED)
    can_fail = property(lambda self: self.phase not in ended)
    return [(Attempt, "move", moved), (Attempt, "can_fail", can_fail)]


@sabotage("repeat-only-the-newest-commit", "F8")
def repeat_only_the_newest_commit() -> list[Patch]:
    """Decide again before the sinks are done, and repeat only the newest decision."""
    decided, original = Committer.decided, uncommitted

    def begin(self: Committer, slot: Slot, cut: Cut, now_ms: int) -> Any:
        self._state = CommitterState.IDLE
        return decided(self, slot, cut, now_ms)

    idle = property(lambda _: CommitterState.IDLE)
    newest = lambda *args: original(*args)[-1:]  # noqa: E731
    return [
        (Committer, "decided", begin),
        (Committer, "state", idle),
        (recovery, "uncommitted", newest),
    ]


@sabotage("repeat-no-commit", "I7")
def repeat_no_commit() -> list[Patch]:
    """Recover from a decided cut without letting its sinks act."""
    return [(recovery, "uncommitted", lambda *_: ())]


@sabotage("commit-without-key", "I7", faults=("crash during an effect", "response lost"))
def commit_without_key() -> list[Patch]:
    """Let a table commit the same slot again."""
    return [(SimulatedTable, "seen", lambda *_: None)]


@sabotage("accept-an-unknown-step", "I2")
def accept_an_unknown_step() -> list[Patch]:
    """Count the acknowledgement of a step that does not take part."""
    original = Attempt.acknowledge

    def acknowledge(self: Attempt, snapshot: Any) -> AckResult:
        if snapshot.step not in self.participants and self.phase is Phase.COLLECTING:
            self._snapshots[snapshot.step] = snapshot
            return AckResult.ACCEPTED
        return original(self, snapshot)

    return [(Attempt, "acknowledge", acknowledge)]


@sabotage("complete-without-the-last-step", "I2")
def complete_without_the_last_step() -> list[Patch]:
    """Decide when all but one have acknowledged."""
    original = Coordinator._acknowledge

    def acknowledge(self: Coordinator, event: Any) -> AckResult:
        result = original(self, event)
        attempt = self._attempts.get(event.snapshot.checkpoint_id)
        if attempt is not None and attempt.phase is Phase.COLLECTING and len(attempt.missing) == 1:
            attempt.move(PhaseTrigger.ALL_ACKNOWLEDGED)
        return result

    return [(Coordinator, "_acknowledge", acknowledge)]


@sabotage("reuse-an-id", "I8")
def reuse_an_id() -> list[Patch]:
    """Number attempts from the last decision on, whatever was attempted in between."""
    original = Attempts.reserve

    def reserve(self: Attempts, attempt: Any) -> bool:
        original(self, attempt)
        return True

    return [(Attempts, "reserve", reserve), (Attempts, "highest", lambda *_: CheckpointId(0))]


@sabotage("decide-in-any-free-slot", "F5")
def decide_in_any_free_slot() -> list[Patch]:
    """Take the next free slot of the log instead of giving way to the process that took ours."""
    original = DecisionLog.create

    def create(self: DecisionLog, entry: Any) -> DecisionOutcome:
        outcome = original(self, entry)
        while outcome is DecisionOutcome.TAKEN:
            entry = replace(entry, slot=Slot(self.read().last_slot + 1))
            outcome = original(self, entry)
        return outcome

    return [(DecisionLog, "create", create)]


@sabotage("a-lost-commit-goes-unnoticed", "F43")
def a_lost_commit_goes_unnoticed() -> list[Patch]:
    """Commit on top of a table without checking that it holds what is recorded."""
    unseen = lambda *_: False  # noqa: E731
    return [(lost_commits, "is_behind", unseen), (sinks, "is_behind", unseen)]


@sabotage("one-transaction-for-any-backlog", "I6")
def one_transaction_for_any_backlog() -> list[Patch]:
    """Touch all staged batches of a commit in one transaction, however many there are."""
    return [(SimulatedSink, "gather", SimulatedSink._gather)]


@sabotage("targets-compared-by-name", "F33", faults=("table renamed", "crash"))
def targets_compared_by_name() -> list[Patch]:
    """Take a table whose host was renamed for another table."""
    original = sinks.target_of

    def target(table: SimulatedTable) -> Any:
        known = original(table)
        options = {name: value for name, value in known.options.items() if name != IDENTITY}
        return replace(known, options=options)

    return [(process, "target_of", target)]


@sabotage("rewind-leaves-the-sinks", "F13")
def rewind_leaves_the_sinks() -> list[Patch]:
    """Rewind the steps but not the tables."""
    original = plan_rewind

    def plan(facts: Any, *args: Any) -> Any:
        return original(replace(facts, leave_sinks=True), *args)

    return [(rewind, "plan_rewind", plan)]

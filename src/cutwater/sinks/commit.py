"""Commits a written decision in its sinks, one by one or a group together.

`protocol.commit` determines what each sink has to do. Sinks that share a transaction do it
together, or none of them does (docs/adr/0018). Recovery repeats decided commits with `see_through`,
outside a running generation, and a rewind restores its sinks with it. The commit record is written
after all sinks have committed (section 9).
"""

from collections.abc import Hashable, Mapping, Sequence

from cutwater.errors import SinkError, TargetBehind
from cutwater.ids import SinkId, Slot
from cutwater.protocol.commit import CommitSink, Committer, RecordCommit
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.decisions import Decision
from cutwater.protocol.lost_commit import Recorded
from cutwater.protocol.options import CommitOptions
from cutwater.sinks.base import CommitsAtomically, OpenSink, ShowingSink
from cutwater.sinks.lost_commits import check_targets_hold
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.codecs import Committed

Versions = Mapping[SinkId, Version]
"""The current version of each sink."""


def commit_sinks(sinks: Mapping[SinkId, OpenSink], commands: Sequence[CommitSink]) -> Versions:
    """Let one sink, or all sinks of one group, commit or restore a decision.

    Raises:
        Superseded: If a sink has committed a later decision instead.
        SinkError: If a sink cannot commit now; then no sink of the group has.
    """
    pairs = [(_find_sink(sinks, command.sink), command) for command in commands]
    first, command = pairs[0]
    if isinstance(first, CommitsAtomically):
        return first.act_together(pairs)
    if command.restore:
        return {command.sink: first.restore(command.permit, command.version)}
    if isinstance(first, ShowingSink):
        return {command.sink: first.seal(command.permit, command.committables, command.shown)}
    return {command.sink: first.commit(command.permit, command.committables)}


def recorded_by(commands: Sequence[CommitSink]) -> dict[SinkId, Recorded]:
    """Return what the targets of some commands must hold before the commands are executed."""
    return {command.sink: command.recorded for command in commands if command.recorded is not None}


def commit_or_explain(
    store: PipelineStore, sinks: Mapping[SinkId, OpenSink], commands: Sequence[CommitSink]
) -> Versions:
    """Commit as `commit_sinks` does; explain what to do about a target that lacks a commit.

    Raises:
        TargetBehind: If a target lacks a commit that is recorded.
    """
    try:
        return commit_sinks(sinks, commands)
    except TargetBehind:
        # The sink itself found this during its commit, and the sink does not know the store.
        check_targets_hold(store, sinks, recorded_by(commands))
        raise


def _find_sink(sinks: Mapping[SinkId, OpenSink], sink: SinkId) -> OpenSink:
    found = sinks.get(sink)
    if found is None:
        raise SinkError(sink, "is not a sink of this pipeline")
    return found


class Groups:
    """Groups the commands of a decision that are executed together.

    A whole group commits, even if only some of its sinks are due again. For the others it is safe
    to commit once more.
    """

    def __init__(self, sinks: Mapping[SinkId, OpenSink]) -> None:
        self._sinks = sinks
        self._slot: Slot | None = None
        self._members: dict[Hashable, dict[SinkId, CommitSink]] = {}

    def of(self, commands: Sequence[CommitSink]) -> list[tuple[CommitSink, ...]]:
        """Return the commands to execute, one tuple for each group.

        The first call for a decision has all of its commands.
        """
        requested: dict[Hashable, None] = {}
        for command in commands:
            if command.permit.slot != self._slot:
                self._slot, self._members = command.permit.slot, {}
            group = self._group(command.sink)
            self._members.setdefault(group, {})[command.sink] = command
            requested[group] = None
        return [tuple(self._members[group].values()) for group in requested]

    def _group(self, sink: SinkId) -> Hashable:
        opened: object = self._sinks.get(sink)
        if isinstance(opened, CommitsAtomically):
            return "group", opened.group
        return "sink", sink


def see_through(
    store: PipelineStore,
    sinks: Mapping[SinkId, OpenSink],
    decision: Decision,
    cut: Cut,
    options: CommitOptions | None = None,
) -> Mapping[SinkId, Version]:
    """Commit a written decision in every sink, once, and record it. May be repeated.

    Returns the current version of each sink. TargetBehind if a target lacks a recorded commit;
    usually no sink has committed then.
    """
    committer = Committer(store.pipeline, options or CommitOptions())
    commands = committer.decided(decision.slot, cut, 0)
    commits = [command for command in commands if isinstance(command, CommitSink)]
    check_targets_hold(store, sinks, recorded_by(commits))
    for together in Groups(sinks).of(commits):
        for sink, version in commit_or_explain(store, sinks, together).items():
            commands = committer.sink_done(decision.slot, sink, version)
    for command in commands:
        if isinstance(command, RecordCommit):
            versions = command.versions
            store.commits.record(Committed(decision.slot, decision.checkpoint_id, versions))
            return versions
    return {}

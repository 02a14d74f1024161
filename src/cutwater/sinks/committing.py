"""Seeing a written decision through its sinks, outside a running generation.

Recovery repeats decided commits this way and a rewind takes its sinks back; `protocol.commit`
says what each sink has to do, and a record says that all of them have done it (section 9).
"""

from collections.abc import Mapping

from cutwater.errors import SinkError
from cutwater.ids import SinkId
from cutwater.protocol.commit import CommitSink, Committer, RecordCommit
from cutwater.protocol.cut import Cut, Version
from cutwater.protocol.decisions import Decision
from cutwater.protocol.options import CommitOptions
from cutwater.sinks.base import OpenSink, ShowingSink
from cutwater.store.forms import Committed
from cutwater.store.opened import OpenStore


def act(sinks: Mapping[SinkId, OpenSink], command: CommitSink) -> Version:
    """Let one sink act on a decision.

    Raises:
        Superseded: If it has acted on a later one instead.
        SinkError: If it cannot now.
    """
    sink = sinks.get(command.sink)
    if sink is None:
        raise SinkError(command.sink, "is not a sink of this pipeline")
    if command.restore:
        return sink.restore(command.permit, command.version)
    if isinstance(sink, ShowingSink):
        return sink.seal(command.permit, command.committables, command.shown)
    return sink.commit(command.permit, command.committables)


def see_through(
    store: OpenStore,
    sinks: Mapping[SinkId, OpenSink],
    decision: Decision,
    cut: Cut,
    options: CommitOptions | None = None,
) -> Mapping[SinkId, Version]:
    """Let every sink act on a written decision, once, and record it. May be repeated.

    Returns:
        What each sink shows now.

    Raises:
        Superseded: If a sink has acted on a later decision instead.
        SinkError: If a sink cannot act now.
        StoreError: If it could not be recorded.
    """
    committer = Committer(store.pipeline, options or CommitOptions())
    commands = list(committer.decided(decision.slot, cut, 0))
    while commands:
        command = commands.pop(0)
        if isinstance(command, RecordCommit):
            versions = command.versions
            store.commits.record(Committed(decision.slot, decision.checkpoint_id, versions))
            return versions
        assert isinstance(command, CommitSink)
        version = act(sinks, command)
        commands += committer.sink_done(decision.slot, command.sink, version)
    return {}

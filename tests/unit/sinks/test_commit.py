"""Sinks that share a transaction act together, at first and whenever they are asked again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from cutwater.errors import SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, CommitSink, grant
from cutwater.protocol.cut import Committable, Version
from cutwater.sinks.base import OpenSink, RestorePreview, Rows
from cutwater.sinks.commit import Groups, commit_sinks

A, B, C, D = map(SinkId, "abcd")


@dataclass
class Alone:
    """A sink that writes down what it is asked."""

    told: list[str] = field(default_factory=list)

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        raise NotImplementedError

    def problem(self, committable: Committable) -> str | None:
        raise NotImplementedError

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        self.told.append(f"commit {permit.slot} {len(committables)}")
        return "committed"

    def look_back(self, version: Version | None) -> RestorePreview:
        raise NotImplementedError

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        self.told.append(f"restore {permit.slot} {version}")
        return "restored"

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        raise NotImplementedError


@dataclass
class Grouped(Alone):
    """A sink of a database."""

    group: str = ""

    def act_together(self, acts: Sequence[tuple[OpenSink, CommitSink]]) -> Mapping[SinkId, Version]:
        self.told.append(" ".join(act.sink for _, act in acts))
        return {act.sink: "together" for _, act in acts}


def ask(sink: SinkId, slot: int = 1, *, restore: bool = False) -> CommitSink:
    permit = grant(PipelineId("p"), Slot(slot), CheckpointId(slot))
    return CommitSink(permit, sink, (), restore, "7" if restore else None)


def sinks() -> dict[SinkId, OpenSink]:
    return {A: Alone(), B: Grouped(group="x"), C: Grouped(group="x"), D: Grouped(group="y")}


def named(groups: list[tuple[CommitSink, ...]]) -> list[str]:
    return ["".join(sink.sink for sink in found) for found in groups]


def test_commands_of_a_group_are_carried_out_together() -> None:
    groups = Groups(sinks())

    assert named(groups.of([ask(one) for one in (D, B, A, C)])) == ["d", "bc", "a"]
    assert groups.of([]) == []


def test_a_group_is_asked_again_whole_and_only_while_its_slot_lasts() -> None:
    groups = Groups(sinks())
    groups.of([ask(one) for one in (A, B, C, D)])

    assert named(groups.of([ask(C)])) == ["bc"]
    assert named(groups.of([ask(C), ask(B), ask(A)])) == ["bc", "a"]
    assert named(groups.of([ask(C, slot=2)])) == ["c"]


def test_a_sink_without_a_group_is_asked_by_itself() -> None:
    found = sinks()
    one = found[A]
    assert isinstance(one, Alone)

    assert commit_sinks(found, [ask(A)]) == {A: "committed"}
    assert commit_sinks(found, [ask(A, restore=True)]) == {A: "restored"}
    assert one.told == ["commit 1 0", "restore 1 7"]


def test_one_sink_of_a_group_is_asked_for_all() -> None:
    found = sinks()
    first, second = found[B], found[C]
    assert isinstance(first, Grouped)
    assert isinstance(second, Grouped)

    assert commit_sinks(found, [ask(B), ask(C)]) == {B: "together", C: "together"}
    assert (first.told, second.told) == (["b c"], [])


def test_a_command_for_a_sink_that_is_not_there_is_refused() -> None:
    with pytest.raises(SinkError, match="is not a sink of this pipeline"):
        commit_sinks(sinks(), [ask(SinkId("gone"))])

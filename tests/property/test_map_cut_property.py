"""Any pipeline changed into any other: a cut is mapped whole, or it is refused.

Two random DAGs of the same names are planned. A cut of the first is mapped into the second with
everything allowed, and the result is compared with what a naive reading of the rules gives: the
cut equation holds, sources stand where they stood, state is with its step, and nothing that was
in flight to a step that is left has vanished.
"""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_plan_property import Dag, dags, declared
from tests.unit.protocol.evolution.test_mapping import topology

from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, InputId, StepId
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Cut,
    InFlight,
    RecordedEvent,
    StepSnapshot,
    faults,
)
from cutwater.protocol.evolution.identity import (
    InputIdentity,
    InputKind,
    OperatorIdentity,
    StepIdentity,
)
from cutwater.protocol.evolution.mapping import Allowances, map_cut
from cutwater.protocol.messages import Event, Place

EVERYTHING = Allowances(new=True, dropped=True)
Identities = Mapping[StepId, StepIdentity]


def identities(planned: PhysicalPlan) -> Identities:
    """What every step is; a `step` keeps state by its own name."""
    found = {}
    for step in planned.steps:
        keeps = str(step.name).startswith("s")
        inputs = [
            *(
                InputIdentity(InputKind.SOURCE, node.name, format="f", settings="f", log=at)
                for at, node in enumerate(step.sources)
            ),
            *(
                InputIdentity(InputKind.CHANNEL, use.id.channel, use.id.ordinal)
                for use in step.inputs
            ),
        ]
        found[step.name] = StepIdentity(
            inputs=tuple(inputs),
            columns=(("a", "long"),),
            operators=(OperatorIdentity("Aggregate", (step.name,), ("",)),) if keeps else (),
            is_query=keeps or bool(step.sources),
            sources=tuple(node.name for node in step.sources),
            sinks=(step.sink.name,) if step.sink else (),
        )
    return found


@st.composite
def cuts(draw: st.DrawFn, steps: Identities, *, aligned: bool) -> Cut:
    """A consistent cut in which every step has run."""
    outputs = {step: draw(st.integers(0, 3)) for step in steps}
    snapshots = {}
    for step, identity in steps.items():
        positions, barriers, in_flight = {}, {}, []
        for use in identity.channels:
            key = InputId(use.ordinal, StepId(use.name))  # type: ignore[arg-type]
            end = outputs[StepId(use.name)]
            start = end if aligned else draw(st.integers(0, end))
            positions[key], barriers[key] = Place(start, start), Place(end, end)
            events = tuple(
                RecordedEvent(at, Event(BatchId(at), 1, 1, (f"{step}{key}{at}",)), ())
                for at in range(start, end)
            )
            if events:
                in_flight.append(InFlight(key, events))
        snapshots[step] = StepSnapshot(
            step,
            CheckpointId(1),
            Generation(1),
            BatchId(draw(st.integers(0, 5))),
            positions=positions,
            barriers=barriers,
            output=Place(outputs[step], outputs[step]),
            in_flight=tuple(in_flight),
            offsets={
                f"{at}:{step_input.name}": f"of {step_input.name}"
                for at, step_input in enumerate(identity.inputs)
                if step_input.kind is InputKind.SOURCE
            },
            state=(BlobRef(step, 1, step),) if identity.is_query else (),
        )
    kind = CheckpointKind.CHECKPOINT
    return Cut(CheckpointId(1), Generation(1), kind, snapshots, identities=steps)


def events_of(cut: Cut) -> set[str]:
    """The files of all rows in flight, each of which belongs to one step."""
    return {
        file
        for snapshot in cut.snapshots.values()
        for part in snapshot.in_flight
        for recorded in part.events
        for file in recorded.event.files
    }


def planned(dag: Dag) -> Identities:
    return identities(plan(declared(dag, Counter())))


@given(st.data(), dags())
def test_an_unchanged_pipeline_is_mapped_onto_itself(data: st.DataObject, dag: Dag) -> None:
    steps = planned(dag)
    cut = data.draw(cuts(steps, aligned=False))

    change = map_cut(cut, steps, Allowances())

    assert change.cut == cut
    assert not change.refusals
    assert not change.queries
    assert not change.is_change


@given(st.data(), dags(), dags(), st.booleans())
def test_a_cut_is_mapped_whole_or_refused(
    data: st.DataObject, before: Dag, after: Dag, aligned: bool
) -> None:
    then, now = planned(before), planned(after)
    cut = data.draw(cuts(then, aligned=aligned))

    change = map_cut(cut, now, EVERYTHING)

    if change.refusals:
        # Aligned, only a step whose state is not there can be in the way.
        assert not aligned or all(str(refusal).startswith("step s") for refusal in change.refusals)
        return
    snapshots = change.cut.snapshots
    assert (
        faults(topology({str(name): identity for name, identity in now.items()}), snapshots) == ()
    )
    offsets = {f"of {name}" for identity in then.values() for name in identity.sources}
    left = {name for identity in now.values() for name in identity.sources}
    carried = {text for snapshot in snapshots.values() for text in snapshot.offsets.values()} - {
        "-"
    }
    assert carried == {text for text in offsets if text.removeprefix("of ") in left}
    for step in then.keys() & now.keys():
        assert snapshots[step].output == cut.snapshots[step].output
        if now[step].operators:
            assert snapshots[step].batch == cut.snapshots[step].batch
            assert snapshots[step].state == cut.snapshots[step].state
    names = {name for identity in now.values() for name in (*identity.sources, *identity.sinks)}
    dropped = {step for step in then if step not in now and not names & set(then[step].sinks)}
    lost = events_of(cut) - events_of(change.cut)
    assert all(any(file.startswith(step) for step in dropped) for file in lost)
    for step in now.keys() - then.keys():
        assert snapshots[step].batch == (0 if snapshots[step].offsets else NO_BATCH)

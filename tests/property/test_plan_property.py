"""Any DAG of nodes: planned once, evaluated once, divided only where it must be.

A random DAG is declared in two random orders, planned, and evaluated step by step as a runtime
would, with functions that only write down their calls. What every sink then gets is compared with
a direct evaluation of the DAG, which knows nothing of steps and channels.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fake_spark import Target

from cutwater import Pipeline
from cutwater.ids import InputId, StepId
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.planning.planner import plan

TABLE = Target("tables/t")


class Drawn(NamedTuple):
    """One node of a random DAG."""

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    chain: bool = True


Dag = tuple[Drawn, ...]


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    """A DAG without errors: every node but a sink is read by another one."""
    nodes = [
        Drawn(f"in{number}", "source", chain=draw(st.sampled_from([True, True, False])))
        for number in range(draw(st.integers(1, 4)))
    ]
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["view", "view", "step"]))
        names = st.sampled_from([node.name for node in nodes])
        read = draw(st.lists(names, min_size=1, max_size=3))
        nodes.append(Drawn(f"{kind[0]}{number}", kind, tuple(read)))
    used = {name for node in nodes for name in node.inputs}
    idle = [node.name for node in nodes if node.name not in used]
    readable = st.sampled_from([node.name for node in nodes])
    more = draw(st.lists(readable, max_size=3))
    for number, name in enumerate([*idle, *more]):
        others = draw(st.lists(readable, max_size=1))
        nodes.append(Drawn(f"out{number}", "sink", (name, *others)))
    return tuple(draw(st.permutations(nodes)))


def noting(name: str, arity: int, calls: Counter[str]) -> Callable[..., object]:
    """A function that counts its calls and returns its name with what it was given."""

    def note(given: tuple[object, ...]) -> object:
        calls[name] += 1
        return (name, *given)

    by_arity: list[Callable[..., object]] = [
        lambda: note(()),
        lambda a: note((a,)),
        lambda a, b: note((a, b)),
        lambda a, b, c: note((a, b, c)),
    ]
    return by_arity[arity]


def declared(nodes: Iterable[Drawn], calls: Counter[str]) -> Pipeline:
    pipeline = Pipeline("random")
    for node in nodes:
        function = noting(node.name, len(node.inputs), calls)
        match node.kind:
            case "source":
                pipeline.source(function, name=node.name, chain=node.chain)
            case "view":
                pipeline.view(function, name=node.name, inputs=node.inputs)
            case "step":
                pipeline.step(function, name=node.name, inputs=node.inputs)
            case _:
                pipeline.sink(node.name, TABLE, of=function, inputs=node.inputs)
    return pipeline


def evaluated_directly(nodes: Mapping[str, Drawn], name: str) -> object:
    return (name, *(evaluated_directly(nodes, read) for read in nodes[name].inputs))


def evaluated_in_steps(planned: PhysicalPlan) -> dict[str, object]:
    """What each sink gets when every step has run once, reading only what was written before."""
    written: dict[str, object] = {}
    sunk: dict[str, object] = {}
    for step in planned.steps:
        frames: dict[InputId, object] = {
            step_input.id: written[step_input.id.channel] for step_input in step.inputs
        }
        rows = step.evaluate(None, frames)
        if step.sink is not None:
            sunk[step.sink.name] = rows
        if step.output is not None:
            written[step.output.id] = rows
    return sunk


def uses_of(dag: Dag) -> Counter[str]:
    return Counter(name for node in dag for name in node.inputs)


@given(dags())
def test_every_sink_gets_what_the_declared_dag_says(dag: Dag) -> None:
    nodes = {node.name: node for node in dag}
    expected = {
        node.name: evaluated_directly(nodes, node.name) for node in dag if node.kind == "sink"
    }

    assert evaluated_in_steps(plan(declared(dag, Counter()))) == expected


@given(dags())
def test_every_node_is_evaluated_once_in_one_step(dag: Dag) -> None:
    calls: Counter[str] = Counter()
    planned = plan(declared(dag, calls))

    evaluated_in_steps(planned)

    assert calls == Counter(node.name for node in dag)
    assert Counter(node.name for step in planned.steps for node in step.nodes) == calls


@given(dags())
def test_no_step_reads_both_outside_sources_and_channels(dag: Dag) -> None:
    planned = plan(declared(dag, Counter()))

    assert all(bool(step.sources) != bool(step.inputs) for step in planned.steps)


@given(dags())
def test_the_steps_are_a_topology_with_all_sinks_and_the_same_readers(dag: Dag) -> None:
    planned = plan(declared(dag, Counter()))

    topology = planned.topology()

    sinks = sorted(node.name for node in dag if node.kind == "sink")
    assert sorted(topology.sinks) == sinks
    assert set(topology.sources) == {step.name for step in planned.steps if step.sources}
    for step in planned.steps:
        written = step.output.readers if step.output else ()
        assert topology.readers(topology[step.name].output) == written


@given(dags())
def test_a_channel_is_only_where_it_must_be_and_says_why(dag: Dag) -> None:
    """A view in a step of its own is shared; a source is shared, unchained, or beside a channel."""
    nodes = {node.name: node for node in dag}
    uses = uses_of(dag)
    planned = plan(declared(dag, Counter()))

    for step in planned.steps:
        if step.output is None:
            assert step.sink is not None
            continue
        assert step.name in step.output.reason
        node = nodes[step.name]
        reader = planned[StepId(step.output.readers[0].step)]
        must = {
            "view": uses[node.name] > 1,
            "source": uses[node.name] > 1 or not node.chain or len(reader.inputs) > 1,
            "step": step.sink is None,
        }
        assert must[node.kind]


@given(dags())
def test_a_sink_is_written_in_a_step_that_feeds_nothing_else(dag: Dag) -> None:
    nodes = {node.name: node for node in dag}
    uses = uses_of(dag)
    planned = plan(declared(dag, Counter()))

    for step in planned.steps:
        (fed, *others) = nodes[step.nodes[-1].name].inputs or ("",)
        if step.sink is not None and not others and nodes[fed].kind == "step":
            assert (step.name == fed) == (uses[fed] == 1)


@given(dags(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_declarations(dag: Dag, random: Random) -> None:
    shuffled = list(dag)
    random.shuffle(shuffled)

    first = plan(declared(dag, Counter()))
    second = plan(declared(shuffled, Counter()))

    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
    assert first.tree() == second.tree()
    assert first.fingerprint == second.fingerprint

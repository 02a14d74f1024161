"""What becomes of a cut in changed code, one change at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from cutwater.ids import (
    NO_BATCH,
    BatchId,
    ChannelId,
    CheckpointId,
    Generation,
    InputId,
    SinkId,
    StepId,
)
from cutwater.protocol.cut import (
    BlobRef,
    CheckpointKind,
    Committable,
    Cut,
    InFlight,
    RecordedEvent,
    StepSnapshot,
    faults,
)
from cutwater.protocol.evolution.identity import (
    NO_OFFSET,
    InputIdentity,
    InputKind,
    OperatorIdentity,
    StepIdentity,
)
from cutwater.protocol.evolution.mapping import Allowances, Change, Fate, Line, map_cut
from cutwater.protocol.messages import START, Event, Place
from cutwater.protocol.topology import StepSpec, Topology

EVERYTHING = Allowances(new=True, dropped=True)
NOTHING = Allowances()
AGGREGATE = OperatorIdentity("Aggregate", ("customer string",), ("",), ("sum bigint",), ("sum(a)",))
COLUMNS = (("id", "bigint"),)
STATE = (BlobRef("state", 1, "aa"),)
HERE = Place(5, 50)


def source(name: str, settings: str = "files", log: int | None = 0) -> InputIdentity:
    return InputIdentity(
        InputKind.SOURCE, name, 0, settings.partition("/")[0], settings, settings, log
    )


def channel(name: str, ordinal: int = 0) -> InputIdentity:
    return InputIdentity(InputKind.CHANNEL, name, ordinal)


PULSE = InputIdentity(InputKind.PULSE, "pulse")


def step(
    *inputs: InputIdentity, state: bool = False, sink: str = "", query: bool = True
) -> StepIdentity:
    found = (step_input.name for step_input in inputs if step_input.kind is InputKind.SOURCE)
    return StepIdentity(
        inputs=inputs,
        columns=COLUMNS,
        operators=(AGGREGATE,) if state else (),
        partitions=8 if state else None,
        is_query=query,
        sources=tuple(dict.fromkeys(found)),
        sinks=(sink,) if sink else (),
        spark="4.3.0",
    )


Steps = Mapping[str, StepIdentity]


def identities(steps: Steps) -> dict[StepId, StepIdentity]:
    return {StepId(name): step for name, step in steps.items()}


def cut_of(steps: Steps, *, behind: Iterable[str] = (), batch: int = 7, written: int = 5) -> Cut:
    """A cut at which every channel holds some Events; `behind` have not read the last of them."""
    snapshots = {}
    for name, identity in steps.items():
        keys = [InputId(channel.ordinal, ChannelId(channel.name)) for channel in identity.channels]
        late = name in behind
        at = Place(written - 1, written * 10 - 10) if late else Place(written, written * 10)
        recorded = RecordedEvent(written - 1, Event(BatchId(3), 1, 10, ("f",)), ())
        snapshots[StepId(name)] = StepSnapshot(
            StepId(name),
            CheckpointId(4),
            Generation(2),
            BatchId(batch),
            positions=dict.fromkeys(keys, at),
            barriers=dict.fromkeys(keys, Place(written, written * 10)),
            output=Place(written, written * 10),
            in_flight=tuple(InFlight(key, (recorded,)) for key in keys if late),
            offsets={
                f"{at}:{step_input.name}": f"{step_input.name}@{at}"
                for at, step_input in enumerate(identity.inputs)
                if step_input.kind is not InputKind.CHANNEL
            },
            state=STATE if identity.is_query else (),
        )
    return Cut(
        CheckpointId(4),
        Generation(2),
        CheckpointKind.CHECKPOINT,
        snapshots,
        identities=identities(steps),
    )


def mapped(then: Steps | Cut, now: Steps, allowed: Allowances = NOTHING) -> Change:
    cut = then if isinstance(then, Cut) else cut_of(then)
    change = map_cut(cut, identities(now), allowed)
    if not change.refusals:
        assert set(change.cut.snapshots) == set(change.cut.identities) == set(identities(now))
        assert faults(topology(now), change.cut.snapshots) == ()
    return change


def topology(steps: Steps) -> Topology:
    return Topology(
        tuple(
            StepSpec(
                StepId(name),
                tuple(InputId(use.ordinal, ChannelId(use.name)) for use in step.channels),
            )
            for name, step in steps.items()
        )
    )


def refusal(change: Change) -> str:
    (only,) = change.refusals
    return str(only)


def fates(change: Change) -> dict[str, Fate]:
    return {fate.step: fate.fate for fate in change.fates}


def notes(change: Change) -> list[str]:
    return [note for fate in change.fates for note in fate.notes]


CHAINED = {"totals": step(source("orders"), state=True, sink="t")}
FANNED = {
    "orders": step(source("orders")),
    "totals": step(channel("orders"), state=True, sink="t"),
    "big": step(channel("orders"), sink="big", query=False),
}


# -- the same code


@pytest.mark.parametrize("steps", [CHAINED, FANNED], ids=["chained", "fanned"])
def test_the_same_steps_go_on_untouched(steps: Steps) -> None:
    cut = cut_of(steps, behind=["totals"] if steps is FANNED else [])

    change = mapped(cut, steps)

    assert change.cut == cut
    assert not change.queries
    assert not change.is_change


def test_code_around_the_state_may_change() -> None:
    now = {"totals": replace(CHAINED["totals"], plan_sha256="other", columns=(("x", "int"),))}

    change = mapped(CHAINED, now)

    assert change.cut.snapshots == cut_of(CHAINED).snapshots
    assert notes(change) == ["outputs other columns"]
    assert change.is_change


def test_an_expression_inside_the_state_may_change() -> None:
    now = replace(CHAINED["totals"], operators=(replace(AGGREGATE, values=("sum(b)",)),))

    assert notes(mapped(CHAINED, {"totals": now})) == [
        "resumes with other expressions in its state"
    ]


# -- a consumer comes and goes


def test_a_second_consumer_takes_the_source_out_of_the_step() -> None:
    change = mapped(CHAINED, FANNED, Allowances(new=True))

    assert fates(change) == {"orders": Fate.MOVED, "totals": Fate.KEPT, "big": Fate.NEW}
    assert change.queries == {
        "orders": (Line("orders@0", log=0, origin=StepId("totals"), origin_log=0),),
        "totals": (Line(channel=(InputId(0, ChannelId("orders")), START)),),
    }
    orders, totals = (change.cut.snapshots[StepId(name)] for name in ("orders", "totals"))
    assert (orders.batch, orders.offsets, orders.state) == (0, {"0:orders": "orders@0"}, ())
    assert (totals.batch, totals.offsets, totals.state) == (7, {}, STATE)
    assert notes(change) == ["reads channel orders now", "no longer reads source orders"]


def test_without_it_the_source_goes_back_into_the_step() -> None:
    change = mapped(FANNED, CHAINED, Allowances(dropped=True))

    assert fates(change) == {"totals": Fate.KEPT, "big": Fate.DROPPED, "orders": Fate.MERGED}
    assert change.queries == {
        "totals": (Line("orders@0", log=0, origin=StepId("orders"), origin_log=0),)
    }
    assert change.cut.snapshots[StepId("totals")].offsets == {"0:orders": "orders@0"}


def test_a_new_consumer_begins_at_the_cut() -> None:
    now = {**FANNED, "all": step(channel("orders"), sink="all", query=False)}

    change = mapped(FANNED, now, Allowances(new=True))

    assert not change.queries
    began = change.cut.snapshots[StepId("all")]
    assert (began.batch, began.positions) == (NO_BATCH, {InputId(0, ChannelId("orders")): HERE})


def test_a_sink_that_gets_a_step_of_its_own_goes_on() -> None:
    apart = {
        "totals": replace(CHAINED["totals"], sinks=()),
        "t": step(channel("totals"), sink="t", query=False),
        "log": step(channel("totals"), sink="log", query=False),
    }

    change = mapped(CHAINED, apart, Allowances(new=True))
    back = mapped(apart, CHAINED, Allowances(dropped=True))

    assert fates(change) == {"totals": Fate.KEPT, "t": Fate.MOVED, "log": Fate.NEW}
    assert fates(back) == {"totals": Fate.KEPT, "t": Fate.MERGED, "log": Fate.DROPPED}
    assert not change.queries
    assert not back.queries


def test_a_step_without_state_may_become_a_query_and_back() -> None:
    batches = {"orders": step(source("orders")), "big": FANNED["big"]}
    query = {"big": step(source("orders"), sink="big")}

    there, back = mapped(batches, query), mapped(query, batches)

    assert list(there.queries) == ["big"]
    assert list(back.queries) == ["orders"]
    assert back.cut.snapshots[StepId("big")].state == ()


def test_files_of_a_source_are_found_by_their_number_in_the_cut() -> None:
    then = {"totals": step(source("a"), source("b", log=1), PULSE, state=True)}
    now = {"totals": step(PULSE, source("b", log=0), source("a", log=1), state=True)}

    change = mapped(then, now)

    totals = StepId("totals")
    assert change.queries[totals] == (
        Line("pulse@2"),
        Line("b@1", log=0, origin=totals, origin_log=1),
        Line("a@0", log=1, origin=totals, origin_log=0),
    )
    assert change.cut.snapshots[totals].offsets == {
        "0:pulse": "pulse@2",
        "1:b": "b@1",
        "2:a": "a@0",
    }
    assert notes(change) == ["reads its inputs in another order"]


def test_a_source_without_files_takes_none_along() -> None:
    then = {"totals": step(source("a", log=None), state=True)}
    now = {"a": step(source("a", log=None)), "totals": step(channel("a"), state=True)}

    assert mapped(then, now).queries[StepId("a")] == (Line("a@0", origin=StepId("totals")),)


def test_a_pulse_begins_anew_in_a_step_that_had_none() -> None:
    now = {"totals": step(source("orders"), PULSE, state=True, sink="t")}

    change = mapped(CHAINED, now)
    moved = mapped(CHAINED, {"x": step(source("orders"), PULSE), **FANNED}, EVERYTHING)

    assert change.queries[StepId("totals")][1] == Line()
    assert moved.queries[StepId("x")][1] == Line()


def test_each_use_of_a_channel_keeps_its_own_position() -> None:
    then = {"a": step(source("a")), "j": step(channel("a", 0), channel("a", 1), state=True)}
    now = {
        "a": step(source("a")),
        "b": step(source("b")),
        "j": step(channel("a", 2), channel("b", 0), channel("a", 1), state=True),
    }
    cut = cut_of(then)
    j = cut.snapshots[StepId("j")]
    first, second = InputId(0, ChannelId("a")), InputId(1, ChannelId("a"))
    places = {first: HERE, second: Place(4, 40)}
    part = InFlight(second, (RecordedEvent(4, Event(BatchId(3), 1, 10, ("f",)), ()),))
    moved = replace(j, positions=places, in_flight=(part,))
    unaligned = replace(cut, snapshots={**cut.snapshots, StepId("j"): moved})

    same = mapped(unaligned, {**then, "a": now["a"]})
    other = mapped(cut, now, EVERYTHING)

    assert same.cut.snapshots[StepId("j")].in_flight == (part,)
    assert other.cut.snapshots[StepId("j")].positions == {
        InputId(0, ChannelId("b")): START,
        InputId(1, ChannelId("a")): HERE,
        InputId(2, ChannelId("a")): HERE,
    }


def test_a_step_that_never_ran_begins_at_the_position_it_takes_over() -> None:
    then = {"orders": step(source("orders")), "big": step(channel("orders"), sink="big")}
    cut = cut_of(then)
    unbegun = replace(cut.snapshots[StepId("big")], batch=NO_BATCH, offsets={})
    cut = replace(cut, snapshots={**cut.snapshots, StepId("big"): unbegun})

    change = mapped(cut, {"big": step(source("orders"), sink="big")})

    assert change.cut.snapshots[StepId("big")].batch == 0


def test_a_step_that_never_ran_and_takes_nothing_over_begins_fresh() -> None:
    cut = cut_of(CHAINED, batch=NO_BATCH)
    snapshot = replace(cut.snapshots[StepId("totals")], offsets={})
    cut = replace(cut, snapshots={StepId("totals"): snapshot})

    change = mapped(cut, FANNED, EVERYTHING)

    assert not change.queries
    assert {snapshot.batch for snapshot in change.cut.snapshots.values()} == {NO_BATCH}
    assert {snapshot.state for snapshot in change.cut.snapshots.values()} == {()}


def never_ran(steps: Steps, name: str, at: Place = START) -> Cut:
    """A cut in which one step has not run yet."""
    cut = cut_of(steps)
    snapshot = cut.snapshots[StepId(name)]
    keys = snapshot.positions
    recorded = tuple(
        RecordedEvent(number, Event(BatchId(number), 1, 10, ("f",)), ())
        for number in range(at.position, HERE.position)
    )
    unbegun = replace(
        snapshot,
        batch=NO_BATCH,
        offsets={},
        state=(),
        positions=dict.fromkeys(keys, at),
        in_flight=tuple(InFlight(key, recorded) for key in keys if recorded),
    )
    return replace(cut, snapshots={**cut.snapshots, StepId(name): unbegun})


@pytest.mark.parametrize("at", [START, HERE])
def test_the_operators_of_a_step_that_never_ran_are_not_compared(at: Place) -> None:
    """It has no state that could fit or not."""
    cut = never_ran(FANNED, "totals", at)
    other = replace(AGGREGATE, keys=("region string",))
    now = {**FANNED, "totals": replace(FANNED["totals"], operators=(other,), partitions=None)}

    change = mapped(cut, now)

    assert not change.refusals
    assert notes(change) == []
    assert change.cut.identities[StepId("totals")].partitions is None
    assert mapped(cut_of(FANNED), now).refusals


def test_a_step_that_never_ran_may_go_without_permission() -> None:
    then = {**FANNED, "more": step(channel("orders"), state=True)}

    assert not mapped(never_ran(then, "more", HERE), FANNED).refusals


def test_a_step_that_has_missed_rows_does_not_get_a_state_unasked() -> None:
    """It never ran, but began behind rows that its new state would lack."""
    then = {**FANNED, "more": step(channel("orders"))}
    now = {**then, "more": step(channel("orders"), state=True)}

    assert "keeps state in Aggregate by" in refusal(mapped(never_ran(then, "more", HERE), now))
    assert not mapped(never_ran(then, "more"), now).refusals


# -- what needs to be allowed


@pytest.mark.parametrize(
    ("now", "allowed", "sentence"),
    [
        (
            {**CHAINED, "x": step(channel("totals"), sink="x", query=False)},
            Allowances(dropped=True),
            "sink x is new: it would begin with what comes after checkpoint 4. Allow it with "
            "--allow-new.",
        ),
        (
            {"totals": step(source("orders"), source("more", log=1), state=True, sink="t")},
            Allowances(dropped=True),
            "source more is new: it would start from its beginning. Allow it with --allow-new.",
        ),
        (
            {**CHAINED, "x": step(channel("totals"), state=True)},
            Allowances(dropped=True),
            "step x is new and keeps state: it would start empty. Allow it with --allow-new.",
        ),
        (
            {"totals": step(source("orders"), state=True)},
            Allowances(new=True),
            "sink t is gone. Allow it with --allow-dropped, or bring it back.",
        ),
    ],
)
def test_what_begins_or_ends_must_be_allowed(
    now: Steps, allowed: Allowances, sentence: str
) -> None:
    assert refusal(mapped(CHAINED, now, allowed)) == sentence
    assert not mapped(CHAINED, now, EVERYTHING).refusals


def test_a_source_that_is_gone_must_be_allowed() -> None:
    then = {"totals": step(source("a"), source("b", log=1), state=True)}
    now = {"totals": step(source("a"), state=True)}

    assert refusal(mapped(then, now)).startswith("source b is gone.")
    assert not mapped(then, now, EVERYTHING).refusals


def test_a_source_that_was_renamed_is_told_its_old_name() -> None:
    now = {**FANNED, "orders": step(source("ordered"))}
    other = {**FANNED, "orders": step(source("ordered", "files/2"))}

    assert str(mapped(FANNED, now).refusals[0]) == (
        "source ordered is new: it would start from its beginning. Allow it with --allow-new; if "
        "it was called orders, give it that name again."
    )
    assert "called" not in str(mapped(FANNED, other).refusals[0])


def test_state_that_is_gone_must_be_allowed() -> None:
    then = {**FANNED, "more": step(channel("orders"), state=True)}

    change = mapped(then, FANNED)

    assert refusal(change) == (
        "step more is gone, and its state would be forgotten. Allow it with --allow-dropped, or "
        "bring it back."
    )
    assert fates(mapped(then, FANNED, EVERYTHING))["more"] is Fate.DROPPED


def test_plain_work_in_between_needs_no_permission() -> None:
    now = {**FANNED, "clean": step(channel("orders"), query=False)}

    assert fates(mapped(FANNED, now))["clean"] is Fate.NEW
    assert fates(mapped(now, FANNED))["clean"] is Fate.MERGED


def test_a_step_that_was_renamed_is_told_its_old_name() -> None:
    now = {
        "orders": FANNED["orders"],
        "sums": FANNED["totals"],
        "big": FANNED["big"],
    }

    change = mapped(FANNED, now)

    assert [str(refusal) for refusal in change.refusals] == [
        "step sums is new and keeps state: it would start empty. Allow it with --allow-new; if "
        "it was called totals, give it that name again.",
        "step totals is gone, and its state would be forgotten. Allow it with --allow-dropped, "
        "or bring it back.",
    ]
    allowed = mapped(FANNED, now, EVERYTHING)
    assert allowed.cut.snapshots[StepId("sums")].batch == NO_BATCH


def test_a_sink_that_rows_wait_for_cannot_be_dropped() -> None:
    waiting = Committable(SinkId("t"), Generation(2), BatchId(6), 1, ())
    cut = replace(cut_of(CHAINED), carried={SinkId("t"): (waiting,), SinkId("u"): ()})

    assert refusal(mapped(cut, {"totals": replace(CHAINED["totals"], sinks=())}, EVERYTHING)) == (
        "sink t is gone, and rows wait for it. Run the old code once more and stop it with a "
        "savepoint, which leaves nothing in flight."
    )
    assert not mapped(cut, CHAINED).refusals


# -- what cannot be mapped


def test_other_keys_cannot_be_mapped_whatever_is_allowed() -> None:
    other = replace(AGGREGATE, keys=("region string",))
    now = {"totals": replace(CHAINED["totals"], operators=(other,))}

    assert refusal(mapped(CHAINED, now, EVERYTHING)) == (
        "step totals keys the state of its Aggregate by region string now, and keyed it by "
        "customer string. Change it back, or give the step another name, which starts it empty "
        "(--allow-new --allow-dropped)."
    )


def test_an_empty_step_cannot_begin_in_the_middle_of_a_source() -> None:
    now = {"sums": CHAINED["totals"]}

    change = mapped(CHAINED, now, EVERYTHING)

    assert refusal(change) == (
        "step sums keeps state and has none in the checkpoint, but source orders in it has a "
        "position. Declare source orders with chain=False, so that it resumes outside the step, "
        "or restart it with --swap orders."
    )
    beside = {"orders": step(source("orders")), "sums": FANNED["totals"]}
    assert not mapped(CHAINED, beside, EVERYTHING).refusals
    anew = mapped(CHAINED, now, replace(EVERYTHING, swap=frozenset({"orders"})))
    assert anew.cut.snapshots[StepId("sums")].batch == NO_BATCH
    assert not anew.queries


def test_state_does_not_go_back_to_an_older_spark() -> None:
    older = {"totals": replace(CHAINED["totals"], spark="4.2.1")}

    assert refusal(mapped(CHAINED, older)) == (
        "step totals runs on Spark 4.2.1, which is older than the 4.3.0 that wrote its state. Run "
        "it on Spark 4.3.0 or newer, or rewind to a checkpoint that an older Spark wrote."
    )
    assert not mapped(older, CHAINED).refusals
    assert not mapped(never_ran(CHAINED, "totals"), older).refusals


def test_the_number_of_partitions_is_that_of_the_state() -> None:
    now = {"totals": replace(CHAINED["totals"], partitions=None)}

    change = mapped(CHAINED, now)

    assert change.cut.identities[StepId("totals")].partitions == 8
    assert mapped(CHAINED, {"totals": replace(CHAINED["totals"], partitions=2)}).refusals


# -- sources that are others


SWAP = Allowances(swap=frozenset({"orders"}))
STREAM = {"totals": step(source("orders", "stream/1"), state=True, sink="t")}


def test_a_swapped_source_begins_at_its_beginning_and_state_is_kept() -> None:
    change = mapped(CHAINED, STREAM, SWAP)

    totals = change.cut.snapshots[StepId("totals")]
    assert change.queries == {"totals": (Line(log=0),)}
    assert (totals.batch, totals.offsets, totals.state) == (7, {"0:orders": NO_OFFSET}, STATE)
    assert notes(change) == ["source orders is swapped: it starts from its beginning (stream/1)"]


def test_a_swap_is_done_once() -> None:
    change = mapped(STREAM, STREAM, SWAP)

    assert not change.queries
    assert change.cut.snapshots == cut_of(STREAM).snapshots
    assert notes(change) == ["source orders is the same source as before: --swap changes nothing"]


def test_a_swapped_source_that_has_not_begun_goes_on_so() -> None:
    swapped = mapped(CHAINED, STREAM, SWAP).cut

    again = mapped(swapped, STREAM)

    assert again.cut.snapshots == swapped.snapshots
    assert not again.queries


def test_positions_mean_nothing_to_another_format() -> None:
    assert refusal(mapped(CHAINED, STREAM)) == (
        "source orders is read as stream now, and was read as files, whose positions mean "
        "nothing to it. Change it back, or restart it with --swap orders."
    )


def test_a_source_of_the_same_format_keeps_its_position() -> None:
    change = mapped(
        {"s": step(source("orders", "stream/1"))}, {"s": step(source("orders", "stream/2"))}
    )

    assert not change.queries
    assert notes(change) == [
        "source orders reads stream/2 now, and read stream/1: its position is kept"
    ]


def test_a_source_that_reads_more_streams_cannot_be_mapped() -> None:
    two = {"totals": step(source("orders"), source("orders", "files/2", 1), state=True, sink="t")}

    change = mapped(CHAINED, two)

    assert refusal(change) == (
        "source orders reads 2 streams now, and read 1. Change it back, or restart it with "
        "--swap orders."
    )
    swapped = mapped(CHAINED, two, SWAP)
    assert swapped.queries[StepId("totals")] == (Line(log=0), Line(log=1))
    assert len(notes(swapped)) == 2


def test_only_a_source_can_be_swapped() -> None:
    swap = Allowances(swap=frozenset({"totals"}))

    assert refusal(mapped(CHAINED, CHAINED, swap)) == (
        "source totals cannot be swapped: there is none. Name another one."
    )


# -- rows in flight


def test_rows_in_flight_stay_where_the_wiring_is_the_same() -> None:
    now = {**FANNED, "all": step(channel("orders"), sink="all", query=False)}
    cut = cut_of(FANNED, behind=["totals"])

    change = mapped(cut, now, EVERYTHING)

    assert change.cut.snapshots[StepId("totals")] == cut.snapshots[StepId("totals")]


def test_rows_in_flight_hold_the_wiring_of_all_steps() -> None:
    now = {
        "orders": step(source("orders")),
        "clean": step(channel("orders"), query=False),
        "totals": FANNED["totals"],
        "big": replace(FANNED["big"], inputs=(channel("clean"),)),
    }

    assert refusal(mapped(cut_of(FANNED, behind=["totals"]), now, EVERYTHING)) == (
        "step big reads channel clean now and read channel orders, and checkpoint 4 has rows in "
        "flight. Run the old code once more and stop it with a savepoint, which leaves nothing "
        "in flight."
    )
    assert not mapped(FANNED, now, EVERYTHING).refusals


def test_rows_in_flight_must_have_the_columns_of_today() -> None:
    wider = {**FANNED, "orders": replace(FANNED["orders"], columns=(*COLUMNS, ("x", "int")))}
    narrower = {**FANNED, "orders": replace(FANNED["orders"], columns=())}
    cut = cut_of(FANNED, behind=["totals"])

    assert refusal(mapped(cut, wider)) == (
        "step orders outputs x int now, which its rows in flight to totals do not have. Run the "
        "old code once more and stop it with a savepoint, which leaves nothing in flight."
    )
    assert not mapped(cut, narrower).refusals
    assert not mapped(FANNED, wider).refusals


def test_rows_in_flight_to_a_sink_do_not_vanish_with_its_step() -> None:
    then = {
        "totals": replace(CHAINED["totals"], sinks=()),
        "t": step(channel("totals"), sink="t", query=False),
    }

    assert refusal(mapped(cut_of(then, behind=["t"]), CHAINED)) == (
        "step t is part of another step now, and checkpoint 4 has rows in flight to it. Run the "
        "old code once more and stop it with a savepoint, which leaves nothing in flight."
    )


def test_rows_in_flight_to_a_step_that_is_dropped_go_with_it() -> None:
    now = {name: FANNED[name] for name in ("orders", "totals")}

    assert not mapped(cut_of(FANNED, behind=["big"]), now, EVERYTHING).refusals


# -- a manifest that says nothing of its steps


def unnamed(steps: Steps) -> Cut:
    return replace(cut_of(steps), identities={})


def test_a_cut_without_identities_is_restored_into_the_same_shape() -> None:
    cut = unnamed(FANNED)

    change = mapped(cut, FANNED)

    assert change.cut == replace(cut, identities=identities(FANNED))
    assert fates(change) == dict.fromkeys(map(StepId, FANNED), Fate.KEPT)


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (FANNED, "step big is not there in checkpoint 4 and reads 0:orders now; checkpoint 4 does"),
        ({"x": CHAINED["totals"]}, "step totals reads outside sources in checkpoint 4 and is not"),
        (
            {"totals": step(source("other"), state=True)},
            "step totals has other sources than checkpoint 4;",
        ),
    ],
)
def test_a_cut_without_identities_is_refused_any_other_shape(now: Steps, sentence: str) -> None:
    change = mapped(unnamed(CHAINED), now, EVERYTHING)

    assert any(str(refusal).startswith(sentence) for refusal in change.refusals)


def test_a_cut_without_identities_gives_no_state_to_a_step_that_had_none() -> None:
    cut = unnamed(CHAINED)
    bare = replace(cut.snapshots[StepId("totals")], state=())
    cut = replace(cut, snapshots={StepId("totals"): bare})

    assert "it would start without its past" in refusal(mapped(cut, CHAINED))


def test_a_cut_without_identities_does_not_say_what_was_swapped() -> None:
    assert refusal(mapped(unnamed(CHAINED), CHAINED, SWAP)).startswith(
        "source orders cannot be swapped: checkpoint 4 does not hold enough to map it."
    )


def topic(topic_id: str) -> InputIdentity:
    return replace(source("orders", "kafka"), topics=(("orders", topic_id),))


def test_a_recreated_topic_is_refused_and_may_be_swapped() -> None:
    cut = cut_of({"totals": step(topic("id-1"), state=True)})
    now = identities({"totals": step(topic("id-2"), state=True)})

    refused = map_cut(cut, now, NOTHING)
    swapped = map_cut(cut, now, Allowances(swap=frozenset({"orders"})))

    (refusal,) = refused.refusals
    assert str(refusal) == (
        "source orders reads orders, deleted and recreated since: the checkpoint's offsets are "
        "those of other records. Start it from its startingOffsets with --swap orders, which "
        "keeps all state."
    )
    assert swapped.refusals == ()
    assert swapped.cut.snapshots[StepId("totals")].offsets == {"0:orders": NO_OFFSET}


@pytest.mark.parametrize("known", [(), (("orders", "id-1"),), (("other", "id-9"),)])
def test_a_topic_whose_id_is_the_same_or_not_known_resumes(
    known: tuple[tuple[str, str], ...],
) -> None:
    cut = cut_of({"totals": step(topic("id-1"), state=True)})
    now = identities({"totals": step(replace(topic(""), topics=known), state=True)})

    change = map_cut(cut, now, NOTHING)

    assert change.refusals == ()
    assert change.cut.snapshots[StepId("totals")].offsets == cut.snapshots[StepId("totals")].offsets

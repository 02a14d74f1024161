"""The state of a run: what users see, and the stop that no failure takes back."""

import pytest

from cutwater.protocol.run_state import RUN, Lifecycle, RunState, RunTrigger


def at(*triggers: RunTrigger) -> Lifecycle:
    """A run that these triggers have moved."""
    run = Lifecycle()
    for trigger in triggers:
        run.move(trigger)
    return run


def test_a_run_starts_runs_and_finishes() -> None:
    run = Lifecycle()
    seen = [run.state]
    for trigger in (RunTrigger.RUN, RunTrigger.FINISH):
        assert run.move(trigger)
        seen.append(run.state)

    assert seen == [RunState.STARTING, RunState.RUNNING, RunState.FINISHED]


@pytest.mark.parametrize(
    ("triggers", "takes"),
    [
        ((), False),
        ((RunTrigger.RUN,), True),
        ((RunTrigger.RUN, RunTrigger.STOP), True),
        ((RunTrigger.RUN, RunTrigger.RESTART), False),
        ((RunTrigger.RUN, RunTrigger.RESTART, RunTrigger.RUN), True),
        ((RunTrigger.RUN, RunTrigger.FINISH), False),
        ((RunTrigger.FAIL,), False),
    ],
)
def test_requests_are_taken_while_a_generation_runs(
    triggers: tuple[RunTrigger, ...], takes: bool
) -> None:
    assert at(*triggers).takes_requests is takes


def test_a_run_resumes_after_a_stop_whose_checkpoint_failed() -> None:
    run = at(RunTrigger.RUN, RunTrigger.STOP)

    assert run.move(RunTrigger.RESUME)
    assert run.state is RunState.RUNNING


def test_a_plain_stop_is_not_resumed_from() -> None:
    run = at(RunTrigger.RUN)

    assert run.stop(saves=True)
    assert not run.move(RunTrigger.RESUME)
    assert (run.state, run.stop_requested, run.saves) == (RunState.STOPPING, True, True)


def test_a_stop_during_the_start_stays_visible_when_the_generation_runs() -> None:
    run = Lifecycle()
    run.stop(saves=False)

    assert not run.move(RunTrigger.RUN)
    assert (run.state, run.saves) == (RunState.STOPPING, False)


def test_a_stop_during_a_restart_is_remembered_and_changes_nothing_that_users_see() -> None:
    run = at(RunTrigger.RUN, RunTrigger.RESTART)

    assert not run.stop(saves=True)
    assert (run.state, run.stop_requested) == (RunState.RESTARTING, True)


@pytest.mark.parametrize("end", [RunTrigger.FINISH, RunTrigger.FAIL])
@pytest.mark.parametrize("late", list(RunTrigger))
def test_nothing_moves_a_run_that_has_ended(end: RunTrigger, late: RunTrigger) -> None:
    run = at(RunTrigger.RUN, end)
    before = run.state

    assert not run.move(late)
    assert run.state is before


def test_a_run_ends_only_as_finished_or_failed() -> None:
    assert RUN.terminal() == {RunState.FINISHED, RunState.FAILED}

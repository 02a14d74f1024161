"""Where a run of a pipeline is, from its start through all its generations to its end.

A run has one state, which users see, and at most one plain stop, which no failure takes back: a
generation that fails after it is not followed by another one. A stop that insists on its checkpoint
belongs to one generation (`protocol.stopping`); the run only resumes after it. See PROTOCOL.md
section 13.
"""

from enum import Enum
from typing import Final

from cutwater.protocol.transitions import TransitionTable


class RunState(Enum):
    """What users see of a run."""

    STARTING = "STARTING"
    """The first generation is being built."""
    RUNNING = "RUNNING"
    """A generation runs."""
    RESTARTING = "RESTARTING"
    """A generation has failed, and the next one follows."""
    STOPPING = "STOPPING"
    """A stop was requested."""
    FINISHED = "FINISHED"
    """The run has ended as it was meant to."""
    FAILED = "FAILED"
    """The run has ended with an error."""


class RunTrigger(Enum):
    """What moves a run."""

    RUN = "a generation runs"
    STOP = "a stop is requested"
    RESUME = "the checkpoint to stop with failed"
    RESTART = "a generation failed"
    FINISH = "the run ends"
    FAIL = "the run cannot go on"


_LIVE: Final = (RunState.STARTING, RunState.RUNNING, RunState.RESTARTING, RunState.STOPPING)

RUN: Final = TransitionTable(
    "run",
    RunState.STARTING,
    {
        (RunState.STARTING, RunTrigger.RUN): RunState.RUNNING,
        (RunState.STARTING, RunTrigger.STOP): RunState.STOPPING,
        (RunState.RUNNING, RunTrigger.STOP): RunState.STOPPING,
        (RunState.RESTARTING, RunTrigger.RUN): RunState.RUNNING,
        (RunState.RESTARTING, RunTrigger.STOP): RunState.RESTARTING,
        (RunState.STOPPING, RunTrigger.RUN): RunState.STOPPING,
        (RunState.STOPPING, RunTrigger.STOP): RunState.STOPPING,
        (RunState.STOPPING, RunTrigger.RESUME): RunState.RUNNING,
        **{(state, RunTrigger.RESTART): RunState.RESTARTING for state in _LIVE},
        **{(state, RunTrigger.FINISH): RunState.FINISHED for state in _LIVE},
        **{(state, RunTrigger.FAIL): RunState.FAILED for state in _LIVE},
    },
)


class Lifecycle:
    """The state of one run, and the plain stop that was requested, if one was.

    `saves` is whether that stop wants a last checkpoint.
    """

    def __init__(self) -> None:
        self.state = RUN.initial
        self.stop_requested = False
        self.saves = False

    def move(self, trigger: RunTrigger) -> bool:
        """Follow a trigger, unless the run has moved on already; return whether the state changed.

        A trigger that comes too late is no error: a stop may be requested, and a failed stop may
        be resumed from, while the run ends.
        """
        if trigger is RunTrigger.RESUME and self.stop_requested:
            return False
        if not RUN.allows(self.state, trigger):
            return False
        before, self.state = self.state, RUN.next(self.state, trigger)
        return self.state is not before

    def stop(self, *, saves: bool) -> bool:
        """Note a plain stop; return whether the state changed."""
        self.stop_requested, self.saves = True, saves
        return self.move(RunTrigger.STOP)

    @property
    def takes_requests(self) -> bool:
        """Whether a generation runs that can serve requests."""
        return self.state in {RunState.RUNNING, RunState.STOPPING}

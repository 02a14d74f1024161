"""The engine port: what runs the steps that the driver coordinates.

`cutwater.spark` implements it. The driver uses an engine only through these types: it builds the
steps and channels of a generation, starts them, and closes them. `RunningStep` (`runtime.step`) is
the part of the port that is one step. Nothing here imports pyspark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cutwater.ids import ChannelId, StepId
from cutwater.protocol.checkpoint.events import Standing
from cutwater.protocol.evolution.mapping import Change
from cutwater.protocol.recovery import Restore
from cutwater.protocol.topology import Topology
from cutwater.runtime.channel import Channel
from cutwater.runtime.reporting.recovery_timing import Phases
from cutwater.runtime.step import DriverCallbacks, RunningStep

if TYPE_CHECKING:
    from cutwater.runtime.context import RunContext


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Built:
    """A generation that is ready to start.

    Attributes:
        steps: Its steps, in plan order.
        standing: What was decided before it, in terms of its steps.
        change: How the cut was mapped to the current steps; None without a cut.
        close: Ends what the engine runs for the generation besides its steps; called once, after
            the steps have ended.
    """

    topology: Topology
    steps: Mapping[StepId, RunningStep]
    channels: Mapping[ChannelId, Channel]
    standing: Standing
    change: Change | None
    close: Callable[[], None] = field(default=_nothing)

    @property
    def has_staged(self) -> bool:
        """Whether sinks have staged rows that no decided cut holds yet."""
        return any(step.machine.staged for step in self.steps.values())

    @property
    def has_backlog(self) -> bool:
        """Whether a channel holds Events that a reader has not read yet."""
        return any(
            backlog.messages
            for channel in self.channels.values()
            for backlog in channel.backlogs().values()
        )


class Engine(Protocol):
    """Runs the steps of one pipeline; one engine serves all generations of a process."""

    def build(
        self,
        context: "RunContext",
        restore: Restore,
        callbacks: DriverCallbacks,
        on_control: Callable[[ChannelId], None],
        phases: Phases,
    ) -> Built:
        """Build the steps and channels of a generation from a cut; nothing runs yet.

        Called on the driver's thread, once per generation. If it raises, nothing is left running.

        Args:
            context: What the pipeline runs with.
            restore: Where the generation begins.
            callbacks: What the steps report to the driver.
            on_control: Called with a channel's name after every control message; does not block.
            phases: Measures how long the parts of a recovery take.

        Raises:
            PlanError: If a step cannot run on this engine.
            CodeChanged: If the cut cannot be restored into the current steps.
            StoreError: If state cannot be fetched.
        """
        ...

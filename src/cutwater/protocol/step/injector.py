"""The injector: how a barrier enters the pipeline at one source (PROTOCOL.md section 3).

The coordinator offers a barrier; the source step takes it between two batches or when idle. Each
source has its own injector and exactly one handle, so only that source can take a barrier offered
to it. Barriers wait in order and are never replaced. Upholds I1, I2 and I8.

The source polls far more often than a barrier arrives, so `PollHandle.poll` does one attribute load
and one truth test when there is none.
"""

from collections import deque

from cutwater.errors import ProtocolViolation
from cutwater.ids import NO_CHECKPOINT, CheckpointId, Generation, StepId
from cutwater.protocol.messages import Barrier


class PollHandle:
    """The source's end of an injector."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: deque[Barrier]) -> None:
        """Share the injector's queue; only `Injector.poll_handle` creates handles."""
        self._waiting = waiting

    def poll(self) -> Barrier | None:
        """Take the oldest waiting barrier, or return None; cheap when there is none."""
        if not self._waiting:
            return None
        return self._waiting.popleft()


class Injector:
    """The coordinator's end: offers barriers to one source, in order, without replacing any."""

    __slots__ = ("_generation", "_handed_out", "_last", "_limit", "_waiting", "step")

    def __init__(self, step: StepId, generation: Generation, limit: int = 1) -> None:
        """Create the injector of one source; `limit` barriers may wait, one per open attempt."""
        self.step = step
        self._generation = generation
        self._limit = limit
        self._waiting: deque[Barrier] = deque()
        self._last = NO_CHECKPOINT
        self._handed_out = False

    def poll_handle(self) -> PollHandle:
        """Return the one handle of this injector; two pollers would share one barrier."""
        if self._handed_out:
            message = f"the injector of {self.step} already has its handle."
            raise ProtocolViolation(message)
        self._handed_out = True
        return PollHandle(self._waiting)

    def offer(self, barrier: Barrier) -> None:
        """Queue a barrier for the source.

        Raises:
            ProtocolViolation: If the barrier belongs to another generation, is not newer than
                the last one, is a CANCEL, or finds the queue full. Nothing is replaced.
        """
        if barrier.epoch != self._generation:
            message = (
                f"{self.step} runs generation {self._generation}; the barrier is of "
                f"generation {barrier.epoch}."
            )
            raise ProtocolViolation(message)
        if barrier.is_cancel:
            message = "a CANCEL is sent to the steps directly, never injected."
            raise ProtocolViolation(message)
        if barrier.checkpoint_id <= self._last:
            message = (
                f"{self.step} was already offered barrier {self._last}; "
                f"{barrier.checkpoint_id} is not newer."
            )
            raise ProtocolViolation(message)
        if len(self._waiting) >= self._limit:
            message = f"{self.step} has {len(self._waiting)} barriers waiting, the maximum."
            raise ProtocolViolation(message)
        self._waiting.append(barrier)
        self._last = barrier.checkpoint_id

    def withdraw(self, checkpoint_id: CheckpointId) -> None:
        """Withdraw exactly this barrier if the source has not taken it yet."""
        for barrier in self._waiting:
            if barrier.checkpoint_id == checkpoint_id:
                self._waiting.remove(barrier)
                return

    @property
    def waiting(self) -> int:
        return len(self._waiting)

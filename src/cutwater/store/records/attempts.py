"""Attempts: numbers that are taken durably, each by one process (docs/adr/0003).

The record is written before the attempt's barriers start and never changes, so that every attempt
leaves a trace and no number is used twice. Upholds I8.
"""

from cutwater.ids import NO_CHECKPOINT, CheckpointId, PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.codecs import ATTEMPT, Attempt
from cutwater.store.records.envelope import decode, encode


class Attempts:
    """The attempts of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._paths = PipelinePaths(pipeline)

    def reserve(self, attempt: Attempt) -> bool:
        """Take an attempt's number.

        May be repeated after an error: a record that is exactly ours was written by the call
        whose answer was lost.

        Returns:
            Whether the number is ours; if not, another process has taken it.

        Raises:
            Unavailable: If it was certainly not taken.
            OutcomeUnknown: If it may or may not have been taken.
        """
        path = self._paths.attempt(attempt.checkpoint_id)
        data = encode(ATTEMPT, path, attempt)
        return self._backend.create(path, data) or self._backend.read(path) == data

    def read(self, checkpoint_id: CheckpointId) -> Attempt:
        """Read who took a number, and for what.

        Raises:
            NotFound: If nobody did.
            Corrupt: If the record is damaged.
            NewerFormat: If it is of a newer Cutwater.
            Unavailable: If the store does not answer.
        """
        path = self._paths.attempt(checkpoint_id)
        return decode(ATTEMPT, path, self._backend.read(path))

    def ids(self, since: CheckpointId = NO_CHECKPOINT) -> tuple[CheckpointId, ...]:
        """Return all numbers that anybody has taken, from one on, in order.

        Raises:
            Corrupt: If there is something else among them.
            Unavailable: If the store does not answer.
        """
        after = self._paths.attempt(CheckpointId(since - 1)) if since > 0 else None
        found = self._backend.list(self._paths.attempts, after)
        return tuple(sorted(self._paths.id_of_attempt(path) for path in found))

    def highest(self, known: CheckpointId = NO_CHECKPOINT) -> CheckpointId:
        """Return the highest number that anybody has taken; `NO_CHECKPOINT` for none.

        Args:
            known: One that was taken: if it is there, nothing before it is looked at.

        Raises:
            Corrupt: If there is something else among them.
            Unavailable: If the store does not answer.
        """
        return max(self.ids(known) or self.ids(), default=NO_CHECKPOINT)

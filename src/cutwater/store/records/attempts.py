"""Attempts: checkpoint numbers, each durably reserved by one process (docs/adr/0003).

The record is written before the attempt's barriers start and never changes, so that every attempt
leaves a trace and no number is used twice. Upholds I8.
"""

from cutwater.ids import NO_CHECKPOINT, CheckpointId
from cutwater.store.records.codecs import ATTEMPT, Attempt
from cutwater.store.records.envelope import PipelineRecords, encode


class Attempts(PipelineRecords):
    def reserve(self, attempt: Attempt) -> bool:
        """Reserve an attempt's number; return whether it is ours.

        May be repeated after an error: a record that is identical to ours was written by the call
        whose answer was lost.
        """
        path = self._paths.attempt(attempt.checkpoint_id)
        data = encode(ATTEMPT, path, attempt)
        return self._backend.create(path, data) or self._backend.read(path) == data

    def read(self, checkpoint_id: CheckpointId) -> Attempt:
        """Read the attempt that reserved a number; NotFound if none did."""
        return self._read(ATTEMPT, self._paths.attempt(checkpoint_id))

    def ids(self, since: CheckpointId = NO_CHECKPOINT) -> tuple[CheckpointId, ...]:
        """Return all reserved numbers from `since` on, in order."""
        after = self._paths.attempt(CheckpointId(since - 1)) if since > 0 else None
        found = self._backend.list(self._paths.attempts, after)
        return tuple(sorted(self._paths.id_of_attempt(path) for path in found))

    def highest(self, known: CheckpointId = NO_CHECKPOINT) -> CheckpointId:
        """Return the highest reserved number; `NO_CHECKPOINT` if there is none.

        If the record of a `known` number exists, earlier ones are not listed.
        """
        return max(self.ids(known) or self.ids(), default=NO_CHECKPOINT)

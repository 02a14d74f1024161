"""A Kafka topic in use by one generation: rows staged as files, written after their decision.

To commit a slot, `Transactions.fence` ends what an older producer left open and keeps it from
writing. Only then is the progress topic read to its end. If the slot is not there, its rows and its
progress record are written in one transaction. So a commit can be repeated by any process, any time
later: what is needed is in the staged files and in Kafka, and nothing in an open transaction.

Rows that would take longer than a third of the transaction's timeout are written in several
transactions, each with a progress record of how many rows are there: exactly once, in order, and
not atomic. A version is the slot that was committed last. Kafka cannot remove records, so that a
restore is possible only if nothing was written since.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cutwater.errors import ConfigError, SinkError, Superseded
from cutwater.ids import BatchId, Generation
from cutwater.protocol.commit import CommitPermit
from cutwater.protocol.cut import Committable, Version
from cutwater.protocol.lost_commit import Found
from cutwater.sinks.base import FrameRows, RestorePreview, Rows, SinkContext, reason_of
from cutwater.sinks.kafka.metadata import TopicFacts
from cutwater.sinks.kafka.progress import Progress, ProgressTopic
from cutwater.sinks.kafka.records import RecordForm, Run, read_runs
from cutwater.sinks.kafka.settings import KafkaSettings
from cutwater.sinks.kafka.transactions import ProducerFenced, Transactions
from cutwater.sinks.staging.formats import Form, StagedOutput
from cutwater.store.backends.directories import is_file
from cutwater.store.backends.files import make_lasting

NOTHING: Final[Version] = "0"
"""The version before the first rows."""

SLOT_HEADER: Final = "cutwater-slot"

_WAY_OUT: Final = "with --leave-sinks they stay, and what is computed again is written once more"

_TRIES: Final = 5
_SHARE: Final = 3
"""The part of a transaction's timeout after which no more rows are added to it."""


class OpenKafkaTopic:
    """A topic to write to; fills `OpenSink` and most of what is optional there.

    Every method except `problem` raises `SinkError` if it cannot be done now. `commit` and
    `restore` raise `Superseded` for a slot that was never committed, after a later slot was.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        form: RecordForm,
        staging: Path,
        context: SinkContext,
        *,
        progress: str | None,
        slot_header: bool,
    ) -> None:
        """Check that the topic exists; with Spark, get ready to write to it."""
        self._sink = context.sink
        self._form = form
        self._slot_header = slot_header
        self._budget_s = settings.transaction_s / _SHARE
        self._lock = threading.Lock()
        self._has_acted = False
        self._staged = StagedOutput(staging, context.pipeline, context.sink)
        try:
            make_lasting(staging)
        except OSError as error:
            reason = f"{staging} cannot be written to: {reason_of(error)}"
            raise ConfigError("staging", reason) from error
        self._facts = TopicFacts(settings, context.sink)
        if form.topic is not None:
            why = self._facts.problem(form.topic)
            if why is not None:
                raise ConfigError("topic", why)
        self._identity = self._facts.identity(form.topic)
        self._needs_key = form.topic is not None and self._facts.is_compacted(form.topic)
        own = f"cutwater.{context.pipeline}.{context.sink}"
        self._progress = ProgressTopic(settings, progress or own, context.pipeline, context.sink)
        if context.spark is None:
            # Perhaps for a preview, which creates nothing.
            self._progress.check()
        else:
            self._progress.make()
        self._transactions = Transactions(settings, own, context.sink)
        if context.spark is not None:
            # What the broker refuses a producer is known at the start, not at the first commit.
            self._transactions.fence()

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def keeps_every_row(self) -> bool:
        return True

    # -- staging

    def stage(self, rows: Rows, generation: Generation, batch: BatchId) -> Committable | None:
        why = self._form.problem(rows.schema)
        if why is not None:
            raise ConfigError(f"sink {self._sink}", why)
        partitions = None
        if "partition" in rows.schema.names and self._form.topic is not None:
            partitions = self._facts.partitions(self._form.topic)
        selected = self._form.select(rows.frame, partitions=partitions, needs_key=self._needs_key)
        chosen = FrameRows(selected)
        try:
            return self._staged.stage(chosen, (generation, batch), Form())
        except OSError as error:
            raise SinkError(self._sink, f"cannot stage: {reason_of(error)}") from error

    def problem(self, committable: Committable) -> str | None:
        differences = (
            self._staged.difference(blob, self._staged.root / blob.name)
            for blob in committable.blobs
        )
        return next((found for found in differences if found is not None), None)

    # -- committing

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> Version:
        """Write the rows of a slot.

        The first slot of a process is written even without rows: a process that was replaced, and
        is still about to write an older slot, finds this one and does not.
        """
        with self._lock:
            if committables:
                self._act(permit, committables)
            elif not self._has_acted:
                with contextlib.suppress(Superseded):
                    self._act(permit, ())
            self._has_acted = True
        if committables:
            self._staged.note_committed(committables)
        return str(permit.slot)

    def restore(self, permit: CommitPermit, version: Version | None) -> Version:
        """Record the slot if nothing was written since a version; SinkError otherwise."""
        with self._lock:
            self._act(permit, (), lambda progress: self._look(progress, version).obstacle)
        return str(permit.slot)

    def _act(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        obstacle: Callable[[Progress], str | None] = lambda _: None,
    ) -> None:
        """Write what is missing of a slot, transaction by transaction.

        Whether there is an obstacle is asked each time the progress is read: a process that was
        replaced may have written until then.
        """
        fenced = 0
        while True:
            progress = self._read_alone()
            if progress.is_done(permit.slot, self._sink):
                return
            why = obstacle(progress)
            if why is not None:
                raise SinkError(self._sink, why)
            files = self._files(committables)
            written = progress.written_of(permit.slot)
            try:
                runs = map(partial(self._finish_run, permit), read_runs(files, written))
                conclude = partial(self._conclude, progress, permit)
                if self._transactions.write(runs, conclude, self._budget_s):
                    # The broker acknowledges a commit before it has marked every partition.
                    self._progress.wait_for(permit.slot)
                    return
            except ProducerFenced:
                fenced += 1
                if fenced == _TRIES:
                    reason = f"another process writes to {self._name} as this sink, again and again"
                    raise SinkError(self._sink, f"{reason}; stop one of the two") from None
            except OSError as error:
                raise SinkError(self._sink, reason_of(error)) from error

    def _read_alone(self) -> Progress:
        """Keep older producers from writing, then read the progress.

        In this order: what an older producer could still commit is visible when it is read. And a
        transaction that a dead process left open would hide the end of the topic for as long as
        its timeout.
        """
        self._progress.make()
        self._transactions.fence()
        return self._progress.read()

    def _finish_run(self, permit: CommitPermit, run: Run) -> Run:
        self._facts.require(run.topic)
        if not self._slot_header:
            return run
        header = (SLOT_HEADER, permit.key(self._sink).encode())
        messages = [
            {**message, "headers": [*message.get("headers", ()), header]}
            for message in run.messages
        ]
        return run._replace(messages=messages, is_plain=False)

    def _conclude(self, progress: Progress, permit: CommitPermit, count: int, is_all: bool) -> Run:
        """Return the progress record of a transaction with so many of the missing rows."""
        rows = progress.written_of(permit.slot) + count
        change = progress.finish if is_all else progress.advance
        content = change(permit.slot, rows).pack()
        record = {"key": self._progress.key, "value": content, "partition": 0}
        return Run(self._progress.name, [record], is_plain=False)

    def _files(self, committables: Sequence[Committable]) -> list[Path]:
        """Return the files with rows, in order; the first blob of each batch is the schema."""
        files = [
            self._staged.place(blob)
            for committable in committables
            for blob in committable.blobs[1:]
        ]
        for file in files:
            if not is_file(file):
                reason = f"staged rows are gone: {file} is missing"
                raise SinkError(self._sink, f"{reason}; bring it back, or rewind")
        return files

    # -- looking

    def newest(self) -> Found:
        """Look, and keep older producers of this sink from writing."""
        with self._lock:
            return _found(self._read_alone())

    def newest_unnoticed(self) -> Found:
        """Look without `init_transactions`, which would abort a commit of a running pipeline."""
        with self._lock:
            return _found(self._progress.read())

    def look_back(self, version: Version | None) -> RestorePreview:
        with self._lock:
            return self._look(self._progress.read(), version)

    def _look(self, progress: Progress, version: Version | None) -> RestorePreview:
        slot = int(version or NOTHING)
        now = NOTHING if progress.newest is None else str(progress.newest)
        then = progress.rows_at(slot)
        if then is None:
            reason = "Kafka cannot remove records, and it is not known how many were written since"
            return RestorePreview(now, progress.rows, None, f"{reason}; {_WAY_OUT}")
        if then == progress.rows:
            return RestorePreview(now, progress.rows, then)
        count = progress.rows - then
        reason = f"Kafka cannot remove the {count} records written to {self._name} since then"
        return RestorePreview(now, progress.rows, then, f"{reason}; {_WAY_OUT}")

    @property
    def _name(self) -> str:
        return "its topics" if self._form.topic is None else f"topic {self._form.topic}"

    # -- deleting

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        try:
            self._staged.discard(generation, keep)
        except OSError as error:
            raise SinkError(self._sink, f"cannot discard: {reason_of(error)}") from error

    def retain(
        self,
        generation: Generation,
        shown: Collection[Version | None],
        keep: Sequence[Committable],
    ) -> None:
        """Delete staged rows that are committed and that no kept checkpoint carries."""
        del generation, shown
        try:
            self._staged.retain(keep)
        except OSError as error:
            raise SinkError(self._sink, f"cannot delete staged rows: {reason_of(error)}") from error


def _found(progress: Progress) -> Found:
    slot = progress.newest
    return Found(slot, NOTHING if slot is None else str(slot))

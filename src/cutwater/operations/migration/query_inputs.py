"""What the streams of plain queries are in a pipeline: a source, or the rows of an adopted step.

A plain query reads everything itself. Its step may read the same source through a channel, which
other steps read too; then the source resumes where the query stopped, and all queries that read it
must have stopped at the same place. Or the query has read the files of another query that is
adopted as well; then it must have read all of them, and the channel between the two steps starts
empty. Both are checked here, from the queries' logs; nothing is written. Only steps without state
may lie between a source and the step of a query: their result is the same wherever they begin.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cutwater.errors import RecoveryError
from cutwater.ids import StepId
from cutwater.operations.migration.file_logs import SINK_LOG, files_before, files_written
from cutwater.operations.migration.plain_query import PlainQuery
from cutwater.spark.analysis.analysis import AnalyzedStep
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind, is_of_files, positions_of


class PlainStream(NamedTuple):
    """One stream of a plain query.

    Attributes:
        step: The step that reads it in the pipeline, or whose rows the query read from files.
        line: Its number in the offsets of that step; None for the rows of that step.
    """

    step: StepId
    line: int | None
    stream: Stream


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A step that reads sources for adopted steps, and resumes where their queries stopped.

    Attributes:
        streams: What each line of its offset log is.
        offsets: Those lines.
        readers: The adopted steps that it reads for.
        numbers: For each line, the number of the stream in the query of the first reader.
    """

    step: StepId
    streams: tuple[Stream, ...]
    offsets: tuple[str | None, ...]
    readers: tuple[StepId, ...]
    numbers: tuple[int, ...]

    @property
    def positions(self) -> Mapping[str, str]:
        """Where it resumes in each stream, by number and name."""
        return positions_of(self.streams, self.offsets)


@dataclass(frozen=True, slots=True)
class QueryInputs:
    """The inputs of all queries that are adopted together, by the steps that continue them."""

    forms: Mapping[StepId, AnalyzedStep]
    queries: Mapping[StepId, PlainQuery]

    def streams(self, step: StepId) -> tuple[PlainStream, ...] | None:
        """Return what a plain query with the plan of a step reads, in the order of its offsets.

        None if the rows of a step with state lie in between, whose query is not adopted.
        """
        try:
            return tuple(self._streams(step))
        except _StateBetween:
            return None

    def _streams(self, step: StepId) -> Iterator[PlainStream]:
        for at, stream in enumerate(self.forms[step].lines):
            producer = StepId(stream.name)
            if stream.kind is StreamKind.PULSE:
                continue
            if stream.kind is not StreamKind.CHANNEL:
                yield PlainStream(step, at, stream)
            elif producer in self.queries:
                yield PlainStream(producer, None, stream)
            elif self.forms[producer].is_stateful:
                raise _StateBetween
            else:
                yield from self._streams(producer)

    # -- queries that are joined by files

    def unread(self, step: StepId) -> Iterator[str]:
        """Find files of an adopted query that the query of a step after it has not read."""
        query = self.queries[step]
        for number, (source, line, _) in enumerate(self.streams(step) or ()):
            if line is not None:
                continue
            offset = query.log.offsets[number]
            joined = (
                f"reads the rows of step {source}, and the query in {query.directory} must have "
                f"read all files that the query of {source} has written"
            )
            if offset is None or not is_of_files(offset):
                yield f"{joined}; its position there is {offset or 'the beginning'}."
                continue
            try:
                reason = self._unread_files(step, source, number, offset)
            except RecoveryError as error:
                reason = error.message
            if reason:
                yield f"{joined}: {reason}"

    def _unread_files(self, step: StepId, source: StepId, number: int, offset: str) -> str:
        query, producer = self.queries[step], self.queries[source]
        read = files_before(query.directory, number, offset)
        written = files_written(read)
        if written is None:
            return (
                f"no file that it has read is beside a {SINK_LOG}, which Spark's file sink writes, "
                "so this cannot be checked."
            )
        if written.batch != producer.batch:
            return (
                f"{written.directory} has the files up to batch {written.batch}, and the last "
                f"batch that the query in {producer.directory} committed is {producer.batch}. "
                "Start that query once with the trigger availableNow; or the files are not its own."
            )
        left = sorted(written.files - read)
        if left:
            return (
                f"{len(left)} of {len(written.files)} are left, such as {left[0]}. Start it once "
                "with the trigger availableNow, while the other one is stopped."
            )
        return ""

    # -- sources that are read for adopted steps

    def shared(self) -> tuple[list[SharedSource], list[str]]:
        """Return the sources that are read for adopted steps, and why they cannot be."""
        found: list[SharedSource] = []
        problems: list[str] = []
        for source, lines in self._uses().items():
            firsts = [uses[0] for _, uses in sorted(lines.items())]
            readers = tuple(dict.fromkeys(use.step for uses in lines.values() for use in uses))
            found.append(
                SharedSource(
                    source,
                    self.forms[source].lines,
                    tuple(use.offset for use in firsts),
                    readers,
                    tuple(use.number for use in firsts),
                )
            )
            try:
                problems += [
                    _difference(self.forms[source].lines[line], uses[0], use)
                    for line, uses in lines.items()
                    for use in uses[1:]
                    if self._place(use) != self._place(uses[0])
                ]
            except RecoveryError as error:
                problems.append(error.message)
        return found, list(dict.fromkeys(problems))

    def _uses(self) -> Mapping[StepId, Mapping[int, Sequence["_Use"]]]:
        """Return where queries stopped in the streams of source steps, by step and line."""
        found: dict[StepId, dict[int, list[_Use]]] = {}
        for step, query in self.queries.items():
            for number, (source, line, _) in enumerate(self.streams(step) or ()):
                if line is not None and source != step:
                    uses = found.setdefault(source, {}).setdefault(line, [])
                    uses.append(_Use(step, number, query.log.offsets[number]))
        return found

    def _place(self, use: "_Use") -> str | frozenset[str] | None:
        if use.offset is None or not is_of_files(use.offset):
            return use.offset
        # Each query numbers its batches of files in its own way.
        return files_before(self.queries[use.step].directory, use.number, use.offset)


class _StateBetween(Exception):
    """A step with state lies between a source and the step of a query."""


class _Use(NamedTuple):
    """A stream as one query reads it: the query's step, its number there, and where it stopped."""

    step: StepId
    number: int
    offset: str | None


def _difference(stream: Stream, first: _Use, other: _Use) -> str:
    return (
        f"{stream.name} is read once for {first.step} and {other.step}, and their queries stopped "
        f"at different places: {first.step} at {first.offset or 'the beginning'}, {other.step} at "
        f"{other.offset or 'the beginning'}. While nothing is added to the source, start each "
        "query once with the trigger availableNow, and adopt then. Or give each step a source of "
        "its own."
    )

"""Which source or step the streams of plain queries belong to, and when they do not fit together.

Directories are written by hand, in the form of Spark's logs; no Spark runs.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cutwater.errors import RecoveryError
from cutwater.ids import BatchId, StepId
from cutwater.operations.migration.file_logs import files_before, files_written
from cutwater.operations.migration.plain_query import PlainQuery
from cutwater.operations.migration.query_inputs import QueryInputs
from cutwater.spark.analysis.analysis import AnalyzedStep, ExecutionMode
from cutwater.spark.checkpoint_dir.logs import BatchLog
from cutwater.spark.checkpoint_dir.offsets import Stream, StreamKind

AT_5, AT_6 = (json.dumps({"orders": {"0": number}}) for number in (5, 6))


def form(*lines: str, stateful: bool = True) -> AnalyzedStep:
    """A step over channels; or over a source, by a name in capitals."""
    nothing = cast("Any", None)
    mode = ExecutionMode.QUERY if stateful or lines[0].isupper() else ExecutionMode.BATCH
    streams = tuple(
        Stream(name, StreamKind.OUTSIDE, "KafkaV2")
        if name.isupper()
        else Stream(name, StreamKind.PULSE if name == "pulse" else StreamKind.CHANNEL)
        for name in lines
    )
    return AnalyzedStep(
        nothing, nothing, mode, is_stateful=stateful, has_watermark=False, lines=streams
    )


FORMS = {
    StepId("source"): form("ORDERS", "REFUNDS", stateful=False),
    StepId("valid"): form("source", stateful=False),
    StepId("totals"): form("source"),
    StepId("pairs"): form("valid", "source"),
    StepId("alone"): form("OTHERS", "pulse"),
    StepId("after"): form("totals"),
}


def query(directory: Path, *offsets: str | None, batch: int = 3) -> PlainQuery:
    return PlainQuery(
        directory=directory,
        batch=BatchId(batch),
        planned=None,
        log=BatchLog(offsets, 0),
        next_watermark_ms=0,
        operators=(),
        provider="",
        format=1,
        files=(),
        size_bytes=0,
    )


def inputs(**queries: PlainQuery) -> QueryInputs:
    return QueryInputs(FORMS, {StepId(name): found for name, found in queries.items()})


def write_log(log: Path, entries: Mapping[str, Iterable[Mapping[str, object]]]) -> None:
    log.mkdir(parents=True)
    for name, lines in entries.items():
        (log / name).write_text("\n".join(["v1", *map(json.dumps, lines)]))


def reading(checkpoint: Path, *files: Path, number: int = 0) -> None:
    """Write the log of a file source that has read a file in each batch."""
    lines = ({"path": f.as_uri(), "timestamp": 1, "batchId": at} for at, f in enumerate(files))
    entries = {str(at): [line] for at, line in enumerate(lines)}
    write_log(checkpoint / "sources" / str(number), entries)


def writing(output: Path, *files: Path) -> None:
    """Write the log of a file sink that has written a file in each batch."""
    lines = ({"path": f.as_uri(), "size": 1, "action": "add"} for f in files)
    write_log(output / "_spark_metadata", {str(at): [line] for at, line in enumerate(lines)})


# -- what the streams are


def test_a_query_reads_what_lies_before_the_channels_of_its_step(tmp_path: Path) -> None:
    found = inputs(after=query(tmp_path), totals=query(tmp_path))

    assert [stream[:2] for stream in found.streams(StepId("pairs")) or ()] == [
        ("source", 0),
        ("source", 1),
        ("source", 0),
        ("source", 1),
    ]
    assert [stream[:2] for stream in found.streams(StepId("alone")) or ()] == [("alone", 0)]
    assert [stream[:2] for stream in found.streams(StepId("after")) or ()] == [("totals", None)]
    assert inputs(after=query(tmp_path)).streams(StepId("after")) is None


# -- sources that are shared


def test_a_source_resumes_where_all_of_its_queries_stopped(tmp_path: Path) -> None:
    found = inputs(
        totals=query(tmp_path, AT_5, None), pairs=query(tmp_path, AT_5, None, AT_5, None)
    )

    (source,), problems = found.shared()

    assert problems == []
    assert (source.step, source.readers) == ("source", ("totals", "pairs"))
    assert (source.offsets, source.numbers) == ((AT_5, None), (0, 1))
    assert source.positions == {"0:ORDERS": AT_5}


@pytest.mark.parametrize(
    ("totals", "pairs", "words"),
    [
        ((AT_5, None), (AT_6, None, AT_6, None), f"totals at {AT_5}, pairs at {AT_6}"),
        ((AT_5, None), (AT_5, AT_5, AT_5, None), f"totals at the beginning, pairs at {AT_5}"),
        ((AT_5, None), (AT_5, None, AT_6, None), f"totals at {AT_5}, pairs at {AT_6}"),
    ],
)
def test_queries_that_stopped_at_different_places_are_named(
    tmp_path: Path, totals: tuple[str | None], pairs: tuple[str | None], words: str
) -> None:
    found = inputs(totals=query(tmp_path, *totals), pairs=query(tmp_path, *pairs))

    _, (problem, *others) = found.shared()

    assert words in problem
    assert "start each query once with the trigger availableNow" in problem
    assert others == []


def test_a_query_that_uses_a_source_twice_must_agree_with_itself(tmp_path: Path) -> None:
    _, problems = inputs(pairs=query(tmp_path, AT_5, None, AT_6, None)).shared()

    (problem,) = problems
    assert "ORDERS is read once for pairs and pairs" in problem


def test_files_are_compared_and_not_the_numbers_of_their_batches(tmp_path: Path) -> None:
    files = [tmp_path / "in put" / f"{number}.json" for number in range(3)]
    for name in ("totals", "pairs"):
        for number in range(4):
            reading(tmp_path / name, *(files if name == "totals" else files[:2]), number=number)
    at_1, at_2 = (json.dumps({"logOffset": number}) for number in (1, 2))
    write_log(
        tmp_path / "compacted" / "sources" / "0",
        {
            "9.compact": [{"path": f.as_uri(), "timestamp": 1, "batchId": 0} for f in files[:2]],
            "10": [{"path": files[2].as_uri(), "timestamp": 1, "batchId": 10}],
        },
    )

    def problems(totals: str, pairs: str) -> list[str]:
        first = query(tmp_path / "totals", totals, None)
        second = query(tmp_path / "pairs", pairs, None, pairs, None)
        return inputs(totals=first, pairs=second).shared()[1]

    assert problems(at_1, at_1) == []
    assert problems(at_1, at_2) == []  # the log of pairs has nothing after 1
    assert len(problems(at_2, at_1)) == 1
    compacted = files_before(tmp_path / "compacted", 0, '{"logOffset":9}')
    assert compacted == {str(file) for file in files[:2]}


def test_a_log_that_cannot_be_read_is_no_empty_log(tmp_path: Path) -> None:
    reading(tmp_path, tmp_path / "a")
    at_0 = '{"logOffset":0}'
    log = tmp_path / "sources" / "0" / "0"
    both = inputs(totals=query(tmp_path, at_0, None), pairs=query(tmp_path, at_0, None, at_0, None))

    for text, words in (("v2\n", "begins with 'v2'"), ("v1\n{", "makes no sense")):
        log.write_text(text)
        with pytest.raises(RecoveryError, match=words):
            files_before(tmp_path, 0, at_0)
        assert any(words in problem for problem in both.shared()[1])


# -- queries that are joined by files


def joined(tmp_path: Path, *, written: int, read: int, batch: int = 2) -> list[str]:
    """Return the problems of a query that has read some of the files that another has written."""
    output = tmp_path / "output"
    files = [output / "day=1" / f"{number}.parquet" for number in range(written)]
    (output / "day=1").mkdir(parents=True)
    writing(output, *files)
    reading(tmp_path / "after", *files)
    offset = json.dumps({"logOffset": read - 1})
    first = query(tmp_path / "totals", AT_5, None, batch=batch)
    return list(
        inputs(totals=first, after=query(tmp_path / "after", offset)).unread(StepId("after"))
    )


def test_a_query_that_has_read_all_files_of_another_may_follow_it(tmp_path: Path) -> None:
    assert joined(tmp_path, written=3, read=3) == []


@pytest.mark.parametrize(
    ("written", "read", "batch", "words"),
    [
        (3, 2, 2, "1 of 3 are left, such as "),
        (3, 3, 1, "has the files up to batch 2, and the last batch that the query in "),
        (3, 3, 4, "committed is 4"),
    ],
)
def test_files_that_are_not_read_or_not_committed_are_refused(
    tmp_path: Path, written: int, read: int, batch: int, words: str
) -> None:
    (problem,) = joined(tmp_path, written=written, read=read, batch=batch)

    assert problem.startswith("reads the rows of step totals, and the query in ")
    assert words in problem


def test_files_whose_writer_is_not_known_are_refused(tmp_path: Path) -> None:
    reading(tmp_path / "after", tmp_path / "a.parquet")
    writer = query(tmp_path / "totals", AT_5, None)

    def problem(offset: str | None) -> str:
        reader = query(tmp_path / "after", offset)
        (found,) = inputs(totals=writer, after=reader).unread(StepId("after"))
        return found

    assert "is beside a _spark_metadata" in problem('{"logOffset":0}')
    assert f"its position there is {AT_5}" in problem(AT_5)
    assert "its position there is the beginning" in problem(None)
    (tmp_path / "_spark_metadata").mkdir()
    assert "has no entry" in problem('{"logOffset":0}')


def test_files_that_a_sink_has_removed_again_need_not_be_read(tmp_path: Path) -> None:
    kept, gone = (tmp_path / name for name in ("kept", "gone"))
    lines = [{"path": kept.as_uri(), "action": "add"}, {"path": gone.as_uri(), "action": "delete"}]
    write_log(tmp_path / "_spark_metadata", {"9.compact": lines})

    written = files_written(frozenset({str(kept)}))

    assert written is not None
    assert written.batch == BatchId(9)
    assert written.files == {str(kept)}

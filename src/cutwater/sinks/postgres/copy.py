"""The code that runs on the executors: sends the rows of one task by COPY, in one transaction.

Rows carry the number of the task attempt that sent them. Spark may run a task twice, and both
attempts may succeed. The job returns which attempt counts, and only that attempt's rows are ever
committed. A row that the table refuses is reported and not raised, because a retry does not help.

Workers get these functions by value, so that an executor needs psycopg and not this package.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext, cloudpickle

if TYPE_CHECKING:
    import psycopg

RESULT: Final = "task long, rows long, bytes long, sha256 string, refused string"

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What every task of a batch does.

    Attributes:
        parameters: Everything to connect with; never shown.
        title: The table's name for users, and the name of the staged table.
    """

    parameters: Mapping[str, str] = field(repr=False)
    statement: str
    columns: tuple[str, ...]
    title: tuple[str, str]


def copy_task(job: CopyJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows of one task; yield one row that describes what was sent."""
    import hashlib  # noqa: PLC0415 - this function travels by value
    import itertools  # noqa: PLC0415

    import psycopg  # noqa: PLC0415 - not needed where there are no rows

    context = TaskContext.get()
    assert context is not None
    task = context.taskAttemptId()
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:
        return
    rows, size, digest, refused = 0, 0, hashlib.sha256(), None
    try:
        with psycopg.connect(**job.parameters) as connection:  # type: ignore[arg-type]
            connection.execute(DURABLY)
            with connection.cursor().copy(job.statement.encode()) as copy:
                for batch in itertools.chain((first,), full):
                    text = lines(batch, task)
                    check_text(text, batch, job)
                    copy.write(text)
                    rows, size = rows + batch.num_rows, size + len(text)
                    digest.update(text)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        refused = refusal(error, job)
    except ValueError as error:
        refused = str(error)
    except psycopg.Error as error:
        # Its traceback would show how it was connected; Spark tries the task again.
        message = without_secrets(str(error), job)
        raise RuntimeError(message) from None
    for _ in full:
        pass
    line: dict[str, list[object]] = {"task": [task], "rows": [rows], "bytes": [size]}
    line |= {"sha256": [digest.hexdigest()], "refused": [refused]}
    yield pa.RecordBatch.from_pydict(line, schema=RESULT_SCHEMA)


RESULT_SCHEMA: Final = pa.schema(
    [
        ("task", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("refused", pa.string()),
    ]
)

DURABLY: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)
"""Rows that are reported as staged or committed are on the server's disk, whatever its setting."""


def lines(batch: pa.RecordBatch, task: int) -> bytes:
    """Return rows in the text form of COPY, computed column by column."""
    count = batch.num_rows
    columns = [_text(column) for column in batch.columns]
    joined = pc.binary_join_element_wise(*columns, pa.scalar(f"{task}\n"), "\t")
    joined = joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
    assert joined.offset == 0
    offsets = memoryview(joined.buffers()[1]).cast("i")
    return bytes(memoryview(joined.buffers()[2])[: offsets[count]])


def _text(values: Any) -> Any:  # noqa: ANN401 - Arrow has no types in Python
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = values.cast(pa.string())
        for special, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            values = pc.replace_substring(values, special, escaped)
    else:
        if pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp("us", None if kind.tz is None else "UTC"))
        values = values.cast(pa.string())
    return pc.fill_null(values, "\\N")


def check_text(text: bytes, batch: pa.RecordBatch, job: CopyJob) -> None:
    """Refuse the one character that no text in PostgreSQL can have; the error names the column."""
    if b"\0" not in text:
        return
    for name, values in zip(job.columns, batch.columns, strict=True):
        if not pa.types.is_string(values.type):
            continue
        for row, found in enumerate(pc.match_substring(values, "\0").to_pylist()):
            if found:
                shown = values[row].as_py()[:40]
                message = (
                    f"column {name} of {job.title[0]} has a text with the character NUL, which "
                    f"PostgreSQL cannot hold: {shown!r}; take it out, for instance with translate"
                )
                raise ValueError(message)


def refusal(error: "psycopg.Error", job: CopyJob) -> str:
    """Say why the table refuses a row, and which row: the server's words, its table's name."""
    diagnosis = error.diag
    parts = [diagnosis.message_primary or str(error), diagnosis.message_detail, diagnosis.context]
    text = "; ".join(
        line.strip().rstrip(".") for part in parts if part for line in part.split("\n")
    )
    # The last value of a failing row is our own number.
    text = re.sub(r"(Failing row contains \(.*?), \d+\)", r"\1)", text)
    shown, staged = job.title
    text = text.replace(f"COPY {staged}", f"COPY {shown}").replace(f'"{staged}"', f'"{shown}"')
    return without_secrets(text, job)


def without_secrets(text: str, job: CopyJob) -> str:
    for name in ("password", "sslpassword"):
        if job.parameters.get(name):
            text = text.replace(job.parameters[name], "***")
    return " ".join(text.split())

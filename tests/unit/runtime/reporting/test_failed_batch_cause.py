"""Causes: the line of the user's file, and the last cause, in one line."""

from cutwater.errors import ConfigError
from cutwater.runtime.reporting.failed_batch import cause_of

PYTHON = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/venv/lib/pyspark/worker.py", line 1978, in main
    process()
  File "/srv/jobs/orders.py", line 21, in price
    return parse(row)
  File "/srv/jobs/orders.py", line 12, in parse
    return 1 / row
ZeroDivisionError: division by zero
 SQLSTATE: 38000
"""
JAVA = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2)
Caused by: org.apache.spark.SparkException: could not read file
\tat org.apache.spark.Foo.bar(Foo.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


def test_an_error_of_a_user_function_names_its_line() -> None:
    assert cause_of(RuntimeError(PYTHON), {"/srv/jobs/orders.py"}) == (
        "/srv/jobs/orders.py:12 in parse",
        "ZeroDivisionError: division by zero.",
    )


def test_an_error_of_java_gives_its_last_cause() -> None:
    assert cause_of(RuntimeError(JAVA)) == ("", "IOException: No space left on device.")


def test_a_file_that_could_not_be_read_is_named() -> None:
    text = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/bad.parquet. "
        f"SQLSTATE: KD001\n{JAVA}"
    )

    assert cause_of(RuntimeError(text)) == (
        "",
        "IOException: No space left on device (while reading file:///in/bad.parquet).",
    )


def test_a_directory_that_is_full_is_named() -> None:
    text = f"[TASK_WRITE_FAILED] Task failed while writing rows to file:/t/_cutwater/b.\n{JAVA}"

    assert cause_of(RuntimeError(text)) == (
        "",
        "IOException: No space left on device (while writing to file:/t/_cutwater/b).",
    )


def test_any_other_error_gives_its_first_line() -> None:
    assert cause_of(ValueError("no such column\nplan:\n...")) == ("", "ValueError: no such column.")
    assert cause_of(KeyError()) == ("", "KeyError.")


def test_our_own_errors_are_already_in_words() -> None:
    assert cause_of(ConfigError("rate", "is below 0")) == ("", "rate: is below 0.")


def test_a_very_long_cause_is_cut() -> None:
    _, reason = cause_of(ValueError("x" * 5000))

    assert len(reason) < 450
    assert reason.endswith("…")

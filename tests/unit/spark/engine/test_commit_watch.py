"""The watch for Spark's commits where no thread can be started."""

import threading
from typing import Any, cast

import pytest

from cutwater.ids import BatchId, StepId
from cutwater.spark.engine.query_step import CommitWatch


class _Step:
    name = StepId("totals")


def test_a_watch_without_a_thread_fails_its_step_and_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    watch = CommitWatch(lambda *_: None)
    with monkeypatch.context() as starved:
        starved.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            watch.watch(cast(Any, _Step()), BatchId(0))

    watch.close()


def test_a_watch_that_never_watched_can_be_closed() -> None:
    CommitWatch(lambda *_: None).close()

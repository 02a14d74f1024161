"""`cutwater doctor --self-test`: a small pipeline on the user's own Spark, stopped and restored.

Numbers flow through a channel into windowed counts, and the counts into a Delta table. The pipeline
takes a checkpoint, continues, is ended at once without another checkpoint, and a new generation
restores and finishes it. Windows with rows on both sides of the checkpoint are then correct only if
state, source, channel, watermark and table were all restored to the same moment.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cutwater.cli.output import bytes_text
from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.config.settings import MASTER_DEFAULT
from cutwater.errors import CutwaterError
from cutwater.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from cutwater.run import PipelineRun
    from cutwater.runtime.reporting.status import RunStatus, StepStatus

_DEADLINE_S: Final = 180.0
_LOOK_S: Final = 0.1
# At this rate the input lasts half a minute: time enough to end the run before it finishes.
_TOTAL: Final = 30_000
_RATE: Final = 1_000
_WINDOW_MS: Final = 500
_DELAY_MS: Final = 500
_KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class Phase:
    """The result of one part of the self-test."""

    name: str
    ok: bool
    duration_ms: int
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """A self-test; `run` runs it.

    Attributes:
        scratch: The directory below which all files are created and removed again; every executor
            must see it. None for the system's temporary directory.
        report: Called with every phase when it has ended.
    """

    master: str = MASTER_DEFAULT
    conf: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    report: Callable[[Phase], None] = lambda _: None

    def run(self) -> tuple[Phase, ...]:
        """Run the phases until one fails; Spark is supported if the last one succeeded."""
        phases: list[Phase] = []
        with tempfile.TemporaryDirectory(
            prefix="cutwater-self-test-", dir=self.scratch, ignore_cleanup_errors=True
        ) as made:
            bench = _Phases(self, Path(made))
            try:
                for name, act in bench.phases():
                    phases.append(_run_phase(name, act))
                    self.report(phases[-1])
                    if not phases[-1].ok:
                        break
            finally:
                bench.close()
        return tuple(phases)


class _Unsupported(Exception):
    """The observation is not the expected one."""


def _run_phase(name: str, act: Callable[[], str]) -> Phase:
    began = time.monotonic()
    try:
        found, is_ok = act(), True
    except CutwaterError as error:
        found, is_ok = error.message, False
    except _Unsupported as error:
        found, is_ok = str(error), False
    except Exception as error:  # noqa: BLE001 - any error of Spark is the reason
        found, is_ok = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", False
    return Phase(name, is_ok, round((time.monotonic() - began) * 1_000), found)


@dataclass(slots=True)
class _Phases:
    """The phases, and the session and run that they share."""

    test: SelfTest
    directory: Path
    spark: Any = None
    running: "PipelineRun | None" = None

    def phases(self) -> "tuple[tuple[str, Callable[[], str]], ...]":
        return (
            ("start Spark", self.start_spark),
            ("take a checkpoint", self.take_checkpoint),
            ("end without another", self.end_at_once),
            ("restore and finish", self.restore),
            ("compare all rows", self.compare),
        )

    def start_spark(self) -> str:
        # Imported here: the other checks must work without Spark.
        from cutwater.spark.session.session import check_session, embedded_session  # noqa: PLC0415

        test = self.test
        self.spark = embedded_session(test.master, app_name="cutwater self-test", conf=test.conf)
        found = f"Spark {self.spark.version} on {self.spark.sparkContext.master}"
        return " ".join([found, *(f"Warning: {warning}" for warning in check_session(self.spark))])

    def take_checkpoint(self) -> str:
        # Small batches at a steady rate, so that the run is ended in the middle of its work.
        self.running = self._start(1_000, available_now=False)
        # With rows in the table, a second run that started from scratch would write them twice.
        self._wait(lambda now: _counts(now).rows > 0, "a window was counted")
        report = self.running.checkpoint(_DEADLINE_S)
        if report.status != "COMPLETED":
            message = f"checkpoint {report.id} failed: {report.failure}"
            raise _Unsupported(message)
        return f"checkpoint {report.id}, {bytes_text(report.state_bytes)} of state"

    def end_at_once(self) -> str:
        assert self.running is not None
        batch = _counts(self.running.status()).batch
        self._wait(lambda now: _counts(now).batch > batch, "another batch was appended")
        self.running.kill()
        result = self.running.wait(_DEADLINE_S)
        if result is None or result.finished:
            how = "did not end" if result is None else "had finished before it could be ended"
            message = f"the pipeline {how}"
            raise _Unsupported(message)
        return "generation 1 ended between two checkpoints"

    def restore(self) -> str:
        self.running = self._start(10_000, available_now=True)
        result = self.running.wait(_DEADLINE_S)
        if result is None or not result.finished:
            message = f"generation 2 did not finish within {_DEADLINE_S:.0f} s"
            raise _Unsupported(message)
        return f"generation {self.running.status().generation} finished the work of generation 1"

    def compare(self) -> str:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra, as in the sink

        table = DeltaTable(self._table).to_pyarrow_table().to_pylist()
        found = sorted((row["start_ms"], row["key"], row["count"]) for row in table)
        expected = expected_rows()
        if found != expected:
            missing = len(set(expected) - set(found))
            unexpected = len(found) - (len(expected) - missing)
            message = (
                f"of {len(expected)} rows {missing} are missing, and {unexpected} rows are "
                "unexpected"
            )
            raise _Unsupported(message)
        return f"{len(found)} counts of {_TOTAL:,} rows, each exactly once"

    def close(self) -> None:
        if self.running is not None:
            self.running.kill()
            # Its phase has reported the error.
            with suppress(CutwaterError):
                self.running.wait(_DEADLINE_S)
        if self.spark is not None:
            self.spark.stop()

    @property
    def _table(self) -> Path:
        return self.directory / "table"

    def _start(self, batch_max: int, *, available_now: bool) -> "PipelineRun":
        from cutwater.run import RunOptions, start  # noqa: PLC0415 - as above

        options = RunOptions(
            store=self.directory / "store",
            scratch=self.directory / "scratch",
            # Longer than the test: no periodic checkpoint is due.
            checkpoint=CheckpointConfig(interval="1h"),
            restart=RestartConfig(strategy="none"),
            available_now=available_now,
        )
        return start(_pipeline(self._table, batch_max), self.spark, options)

    def _wait(self, condition: "Callable[[RunStatus], bool]", what: str) -> None:
        assert self.running is not None
        end_s = time.monotonic() + _DEADLINE_S
        while not condition(self.running.status()):
            if self.running.wait(_LOOK_S) is not None:
                message = f"the pipeline ended before {what}"
                raise _Unsupported(message)
            if time.monotonic() > end_s:
                message = f"not within {_DEADLINE_S:.0f} s: {what}"
                raise _Unsupported(message)


def expected_rows() -> list[tuple[int, int, int]]:
    """Return the expected rows of the table: window start, key, count."""
    watermark_ms = (_TOTAL - 1) * 1_000 // _RATE - _DELAY_MS
    count = _RATE * _WINDOW_MS // 1_000 // _KEYS
    return [
        (start_ms, key, count)
        for start_ms in range(0, watermark_ms - _WINDOW_MS + 1, _WINDOW_MS)
        for key in range(_KEYS)
    ]


def _pipeline(table: Path, batch_max: int) -> Pipeline:
    # Sessions and frames are `Any`: only spark, sources and sinks import Spark's types.
    from cutwater import sinks, sources  # noqa: PLC0415 - as above

    pipeline = Pipeline("self-test")

    @pipeline.source(chain=False)
    def numbers(spark: Any) -> Any:  # noqa: ANN401 - see above
        start = "1970-01-01T00:00:00Z"
        return sources.sequence(
            spark, total=_TOTAL, rate=float(_RATE), batch_max=batch_max, start_time=start
        )

    @pipeline.step(partitions=2)
    def counts(numbers: Any) -> Any:  # noqa: ANN401 - see above
        keyed = numbers.withWatermark("at", f"{_DELAY_MS} milliseconds").selectExpr(
            f"window(at, '{_WINDOW_MS} milliseconds') AS window", f"value % {_KEYS} AS key"
        )
        counted = keyed.groupBy("window", "key").count()
        return counted.selectExpr("unix_millis(window.start) AS start_ms", "key", "count")

    pipeline.sink("counted", sinks.delta(str(table)), of=counts)
    return pipeline


def _counts(status: "RunStatus") -> "StepStatus":
    return next(step for step in status.steps if step.name == "counts")

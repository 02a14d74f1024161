"""The output of a running pipeline: a live view, plain lines, or JSON lines.

All three receive one `RunStatus` after the other, at most four a second. A terminal shows the view,
redrawn in place. A pipe or a file gets one line for each event (a new state, a finished checkpoint,
a restart), and `--output json` writes the same events as JSON, with the fields of `views.fields`.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cutwater.cli.output import Table, bytes_text, count_text, duration_text, say, say_json
from cutwater.cli.render import checkpoint_json, recovery_text
from cutwater.printable import printable
from cutwater.views.fields import recovery_fields

if TYPE_CHECKING:
    from cutwater.runtime.reporting.status import CheckpointReport, RunResult, RunStatus

_IN_PROGRESS: Final = "IN_PROGRESS"
_FINISHED_CHECKPOINTS: Final = 5


class Notice(NamedTuple):
    """One event of a run.

    Attributes:
        kind: `state`, `restart`, `recovery` or `checkpoint`.
        is_routine: Whether the live view shows it anyway.
    """

    kind: str
    text: str
    fields: dict[str, object]
    is_routine: bool = False


class Screen(Protocol):
    """Shows a run; a context manager, so that the terminal is restored."""

    def __enter__(self) -> Self:
        """Start."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, and restore the terminal."""
        ...

    def show(self, status: "RunStatus") -> None:
        """Show a status."""
        ...

    def write_line(self, text: str) -> None:
        """Show a message of the command."""
        ...

    def end(self, result: "RunResult") -> None:
        """Show the result."""
        ...


def notices(before: "RunStatus | None", after: "RunStatus") -> list[Notice]:
    """Return the events between two statuses of a run, in order."""
    found: list[Notice] = []
    if before is not None and after.restarts > before.restarts:
        text = f"restart {after.restarts}, generation {after.generation}: {_reason(after)}"
        fields: dict[str, object] = {"restarts": after.restarts, "generation": after.generation}
        found.append(Notice("restart", text, {**fields, "detail": after.detail}))
    recovery = after.recovery
    if recovery is not None and recovery.first_batch_ms is not None:
        seen = before.recovery if before is not None else None
        if seen is None or (seen.generation, seen.first_batch_ms) != (
            recovery.generation,
            recovery.first_batch_ms,
        ):
            found.append(Notice("recovery", recovery_text(recovery), recovery_fields(recovery)))
    known = {(report.id, report.status) for report in before.checkpoints} if before else set()
    found += [
        _checkpoint_notice(report)
        for report in after.checkpoints
        if report.status != _IN_PROGRESS and (report.id, report.status) not in known
    ]
    if before is None or before.state != after.state:
        detail = f": {after.detail}" if after.detail else ""
        text = f"{after.pipeline} is {after.state}{detail}"
        fields = {"state": after.state, "detail": after.detail, "generation": after.generation}
        found.append(Notice("state", text, fields))
    return found


def result_text(result: "RunResult") -> str:
    how = "finished: all input is processed" if result.finished else "stopped"
    if result.problem:
        how += f" without a complete last checkpoint: {result.problem.rstrip('.')}"
    last = (
        "no checkpoint was taken"
        if result.last_checkpoint is None
        else f"the next run resumes from checkpoint {result.last_checkpoint}"
    )
    return (
        f"{result.pipeline} {how}. {count_text(result.checkpoints, 'checkpoint')}, "
        f"{count_text(result.restarts, 'restart')}; {last}."
    )


def view(status: "RunStatus") -> RenderableType:
    parts: list[RenderableType] = [_heading(status), _steps(status)]
    if status.channels:
        parts.append(_channels(status))
    return Group(*parts, _checkpoints(status))


class LineScreen:
    """Writes one line for each event, with the time of day."""

    def __init__(self) -> None:
        self._seen: RunStatus | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def show(self, status: "RunStatus") -> None:
        for notice in notices(self._seen, status):
            self._write(notice)
        self._seen = status

    def write_line(self, text: str) -> None:
        say(f"{datetime.now(UTC).astimezone():%H:%M:%S} {text}")

    def end(self, result: "RunResult") -> None:
        self.write_line(result_text(result))

    def _write(self, notice: Notice) -> None:
        self.write_line(notice.text)


class JsonScreen(LineScreen):
    """Writes the same events as JSON, one object per line, each with its `type` and the time."""

    def write_line(self, text: str) -> None:
        self._object("message", {"text": text})

    def end(self, result: "RunResult") -> None:
        self._object("result", asdict(result))

    def _write(self, notice: Notice) -> None:
        self._object(notice.kind, notice.fields)

    def _object(self, kind: str, fields: dict[str, object]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        say_json({"type": kind, "time": now, **fields})


class LiveScreen:
    """A view that is redrawn in place; other events are written above it."""

    def __init__(self, console: Console) -> None:
        # Drawn on every new status and not by a timer, so that a busy process is not slowed.
        self._live = Live(console=console, auto_refresh=False)
        self._seen: RunStatus | None = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, status: "RunStatus") -> None:
        for notice in notices(self._seen, status):
            if not notice.is_routine:
                self.write_line(notice.text)
        self._seen = status
        self._live.update(view(status), refresh=True)

    def write_line(self, text: str) -> None:
        """Write a line above the view."""
        now = datetime.now(UTC).astimezone()
        self._live.console.print(Text(printable(f"{now:%H:%M:%S} {text}")))

    def end(self, result: "RunResult") -> None:
        self.write_line(result_text(result))


def _reason(status: "RunStatus") -> str:
    return status.detail or "no reason was given"


def _checkpoint_notice(report: "CheckpointReport") -> Notice:
    fields = checkpoint_json(report)
    if report.status != "COMPLETED":
        reason = report.failure or "no reason was given"
        return Notice("checkpoint", f"checkpoint {report.id} failed: {reason}", fields)
    parts = [f"{bytes_text(report.uploaded_bytes)} uploaded"]
    if report.unaligned:
        parts.append(f"unaligned, {bytes_text(report.in_flight_bytes)} in flight")
    if not report.commit_point:
        parts.append("sinks wait for the next")
    took = duration_text(report.duration_ms)
    text = f"checkpoint {report.id} completed in {took} ({'; '.join(parts)})"
    return Notice("checkpoint", text, fields, is_routine=True)


def _heading(status: "RunStatus") -> Text:
    parts = [f"generation {status.generation}"]
    if status.restarts:
        parts.append(count_text(status.restarts, "restart"))
    if status.detail:
        parts.append(status.detail)
    about = printable(", ".join(parts))
    return Text.assemble((status.pipeline, "bold"), f"  {status.state}  ", about)


def _steps(status: "RunStatus") -> Table:
    table = Table("step", box=None, pad_edge=False)
    for name in ("batch", "rows", "rows/s"):
        table.add_column(name, justify="right")
    table.add_column("watermark")
    for step in status.steps:
        rate = "finished" if step.finished else f"{step.rows_per_second:,.0f}"
        watermark = "" if step.watermark_ms is None else _moment(step.watermark_ms)
        batch = "" if step.batch < 0 else str(step.batch)
        table.add_row(step.name, batch, f"{step.rows:,}", rate, watermark)
    return table


def _channels(status: "RunStatus") -> Table:
    table = Table("channel", "reader", box=None, pad_edge=False)
    table.add_column("backlog", justify="right")
    for channel in status.channels:
        size = bytes_text(channel.size_bytes)
        backlog = f"{count_text(channel.messages, 'message')}, {size}"
        table.add_row(channel.name, channel.reader, backlog)
    return table


def _checkpoints(status: "RunStatus") -> Text:
    done = [report for report in status.checkpoints if report.status != _IN_PROGRESS]
    if not done:
        return Text("no checkpoint yet")
    newest = (_checkpoint_notice(report).text for report in done[-_FINISHED_CHECKPOINTS:])
    return Text(printable("\n".join(newest)))


def _moment(moment_ms: int) -> str:
    return f"{datetime.fromtimestamp(moment_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"

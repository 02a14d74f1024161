"""`cutwater run`: run a pipeline until its input ends, a signal arrives or its time is up.

Everything that can be wrong with the command and the file is found before Spark starts. Ctrl-C,
SIGTERM and SIGHUP request a stop with a final checkpoint; a second Ctrl-C ends the run at once,
which loses nothing that a checkpoint holds. Signal handlers only set a flag, and the loop acts on
it: a handler that called into a run could meet a lock that the interrupted line holds. Before the
pipeline runs, a signal ends the command at once (`cli.process`).

The API and dashboard of a run are served by default, on this machine only. Serving never keeps a
pipeline from running: unless the user chose an address, a problem is one line on the screen. A
chosen address that is not available is an error, before Spark starts. From then on the server
answers probes, so that a long recovery is not mistaken for a dead process.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from cutwater.cli.commands.plan import change_lines
from cutwater.cli.live import JsonScreen, LineScreen, LiveScreen, Screen
from cutwater.cli.load import load, parse_pairs
from cutwater.cli.logs import LogFormat, LogFormatOption, log_as
from cutwater.cli.options import (
    DEFAULT_STORE,
    AllowDropped,
    AllowNew,
    Conf,
    Debug,
    Master,
    OutputForm,
    Parameters,
    PublicUrlOption,
    Swap,
    Target,
    store_location,
)
from cutwater.cli.output import INTERRUPTED, SUCCESS, UNSAVED, Output
from cutwater.cli.process import ending_signals, raise_open_files, received_signal
from cutwater.cli.session import SessionStarter
from cutwater.config.options import CheckpointConfig, Unaligned
from cutwater.config.settings import MASTER_DEFAULT, Settings, read_settings
from cutwater.errors import ConfigError, CutwaterError
from cutwater.operations.rewind.rewind import resolve_rewind_target
from cutwater.planning.planner import plan
from cutwater.units import milliseconds

if TYPE_CHECKING:
    from cutwater.run import PipelineRun
    from cutwater.runtime.reporting.status import RunResult
    from cutwater.server.app import RunServer


HELP: Final = """Run a pipeline, with a checkpoint every few seconds.

Resumes from the last checkpoint in the store, or starts without one. Ctrl-C (or SIGTERM, or SIGHUP
unless it is ignored) takes a final checkpoint and stops; a second Ctrl-C stops at once, and the
next run resumes from the last checkpoint. A run continues when its output can no longer be written.

\b
  cutwater run orders.py
  cutwater run orders.py --interval 5s --store /data/orders
  cutwater run orders.py --store s3://bucket/orders
  cutwater run orders.py --available-now       process the available input, then exit
  cutwater run orders.py --swap orders         the source has been replaced; keep all state
  cutwater run orders.py:make --param env=prod --master spark://host:7077

\b
Exit codes
  0    finished, or stopped on request
  1    the pipeline failed
  2    wrong use: an option, the file or the pipeline
  3    another process runs this pipeline, or has taken it over
  4    stopped on request, but the last checkpoint failed; the next run resumes from the one before
  129  ended by SIGHUP before the pipeline ran
  130  stopped at once by a second Ctrl-C
  143  ended by SIGTERM before the pipeline ran
"""

AUTO: Final = "auto"
OFF: Final = "off"

ServeOption = Annotated[
    str,
    typer.Option(
        "--serve",
        metavar="[HOST:]PORT|auto|off",
        envvar="CUTWATER_SERVE",
        help="The address of the API and dashboard; auto is port 4080 of this machine, or the next "
        "free port.",
    ),
]

# Options of `spark-pipelines run`, known in order to be refused with the reason.
Refresh = Annotated[list[str], typer.Option("--refresh", hidden=True)]
FullRefresh = Annotated[list[str], typer.Option("--full-refresh", hidden=True)]
FullRefreshAll = Annotated[bool, typer.Option("--full-refresh-all", hidden=True)]

_DEFAULTS: Final = CheckpointConfig()
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    target: Target
    param: Parameters = field(default_factory=list)
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where checkpoints are kept: a durable directory, or s3://, gs://, az://.",
        ),
    ] = DEFAULT_STORE
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="A fast local directory for temporary files; may be lost.",
            show_default="a temporary directory",
        ),
    ] = None
    master: Master = MASTER_DEFAULT
    conf: Conf = field(default_factory=list)
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="From one checkpoint to the next, such as 5s or 1m.")
    ] = _DEFAULTS.interval
    alignment_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long barriers wait for each other before they overtake data."
        ),
    ] = _DEFAULTS.alignment_timeout
    unaligned: Annotated[
        bool | None,
        typer.Option(
            "--unaligned/--no-unaligned",
            help="Whether barriers may overtake data.",
            show_default="unaligned",
        ),
    ] = None
    forced: Annotated[
        bool, typer.Option("--forced", help="Let barriers overtake data at once, always.")
    ] = False
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the available input, then exit.")
    ] = False
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop with a checkpoint after this time, such as 60s.",
            show_default="until stopped",
        ),
    ] = None
    start_from: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="latest|none|ID|NAME|TIME",
            help="The checkpoint to start from: the latest, a checkpoint's number, a savepoint's "
            "name, or a time. One that is not the latest is a rewind: needs --yes. With none, the "
            "pipeline starts without a checkpoint, and is refused if it has taken one.",
        ),
    ] = "latest"
    yes: Annotated[
        bool, typer.Option("--yes", help="Roll the sinks back to the checkpoint of --from.")
    ] = False
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run the pipeline under another name, such as that of a fork.",
            show_default="the pipeline's own",
        ),
    ] = None
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover", help="Run even if another process seems to run it; that process ends."
        ),
    ] = False
    allow_new: AllowNew = False
    allow_dropped: AllowDropped = False
    swap: Swap = field(default_factory=list)
    moved: Annotated[
        list[str],
        typer.Option(
            metavar="SINK",
            help="The sink's target is the same as before, now at another address or on another "
            "server. May be repeated.",
        ),
    ] = field(default_factory=list)
    refresh: Refresh = field(default_factory=list)
    full_refresh: FullRefresh = field(default_factory=list)
    full_refresh_all: FullRefreshAll = False
    serve: ServeOption = AUTO
    public_url: PublicUrlOption = None
    log_format: LogFormatOption = LogFormat.TEXT
    output: OutputForm = Output.TEXT
    live: Annotated[
        bool,
        typer.Option(
            "--live/--no-live",
            help="Redraw a view in place, or write lines; always lines without a terminal.",
        ),
    ] = True
    debug: Debug = False


def run_command(arguments: RunArguments) -> int:
    """Run the pipeline to its end; return the exit code."""
    _refuse_refreshes(arguments)
    duration_s = _duration_s(arguments.duration)
    settings = read_settings(os.environ)
    checkpoint = _checkpoint_config(arguments, settings)
    conf = {**settings.spark, **parse_pairs("--conf", arguments.conf)}
    parameters = parse_pairs("--param", arguments.param)
    location = store_location(arguments.store)
    log_as(arguments.log_format)
    raise_open_files()

    # Imported here: `plan`, `doctor` and `--help` must work without Spark.
    from cutwater.run import RunOptions, start  # noqa: PLC0415
    from cutwater.spark.session.session import check_session, ship_by_value  # noqa: PLC0415

    options = RunOptions(
        store=location.directory or location.text,
        scratch=arguments.scratch,
        checkpoint=checkpoint,
        restart=settings.restart,
        available_now=arguments.available_now,
        start_from=arguments.start_from,
        takeover=arguments.takeover,
        name=arguments.name,
        may_rewind=arguments.yes,
        allow_new=arguments.allow_new,
        allow_dropped=arguments.allow_dropped,
        swap=tuple(arguments.swap),
        moved=tuple(arguments.moved),
    )
    with (
        closing(Serving(arguments.serve, arguments.public_url)) as serving,
        _screen(arguments) as screen,
    ):
        name = f"cutwater {Path(arguments.target).name}"
        starting = partial(screen.write_line, f"starting Spark on {arguments.master}")
        session = SessionStarter(arguments.master, name, conf, starting)
        loaded = load(arguments.target, parameters, session)
        # Planned here too, so that a mistake shows before Spark starts.
        plan(loaded.pipeline)
        pipeline = arguments.name or loaded.pipeline.name
        if arguments.start_from not in {"latest", "none"} and not arguments.yes:
            _check_consent(arguments, pipeline)
        spark = session()
        for warning in check_session(spark):
            screen.write_line(f"warning: {warning}")
        ship_by_value(loaded.modules)
        loaded.prepare(spark)
        screen.write_line(f"starting {pipeline}; its checkpoints are in {options.store}")
        run = start(loaded.pipeline, spark, options)
        with _handle_signals() as request:
            if run.change is not None and run.change.is_change:
                for line in change_lines(run.change):
                    screen.write_line(line)
            with serving.serve(run, screen.write_line):
                result = _follow(run, screen, duration_s, request)
        if result is None:
            # The JVM ends with this process; waiting for it would not be "at once".
            return INTERRUPTED
    spark.stop()
    return UNSAVED if result.problem else SUCCESS


def _refuse_refreshes(arguments: RunArguments) -> None:
    if arguments.refresh:
        reason = "all tables of a pipeline commit together, so a part of them cannot be updated"
        raise ConfigError("--refresh", f"{reason}; leave it out")
    given = {
        "--full-refresh": bool(arguments.full_refresh),
        "--full-refresh-all": arguments.full_refresh_all,
    }
    for option in (option for option, is_given in given.items() if is_given):
        reason = "one checkpoint covers all tables of a pipeline, and nothing is deleted for it"
        way = "rewind it, or drop the tables and run it with another --store"
        raise ConfigError(option, f"{reason}; {way}")


def _check_consent(arguments: RunArguments, pipeline: str) -> None:
    """Refuse a rewind without --yes, before Spark starts."""
    target = resolve_rewind_target(
        pipeline, to=arguments.start_from, store=arguments.store, option="--from"
    )
    if target is not None:
        reason = f"{target.title} is not the current checkpoint of {pipeline}: this is a rewind"
        number = target.decision.checkpoint_id
        look = f"`cutwater rewind {pipeline} --to {number}` shows what it does"
        raise ConfigError("--from", f"{reason}. {look}; add --yes to do it")


def _follow(
    run: "PipelineRun", screen: Screen, duration_s: float | None, request: "_StopRequest"
) -> "RunResult | None":
    """Show the run until it ends; return its result, or None if it was ended at once."""
    end_s = None if duration_s is None else time.monotonic() + duration_s
    is_stopping = False
    while (result := run.wait(_LOOK_S)) is None:
        screen.show(run.status())
        if request.kill:
            screen.write_line("stopped at once, without a checkpoint")
            run.kill()
            return None
        is_over = end_s is not None and time.monotonic() >= end_s
        if not is_stopping and (request.stop or is_over):
            why = request.stop or f"{duration_s:g} s have passed"
            screen.write_line(f"{why}: taking a final checkpoint; Ctrl-C again to stop at once")
            run.stop(checkpoint=True)
            is_stopping = True
    screen.show(run.status())
    screen.end(result)
    return result


@dataclass(slots=True)
class _StopRequest:
    """What signals have requested; `stop` is empty if none has requested a stop."""

    stop: str = ""
    kill: bool = False

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal. A third Ctrl-C ends the process without waiting for the loop."""
        if number == signal.SIGINT and self.kill:
            os._exit(INTERRUPTED)
        self.kill = self.kill or (number == signal.SIGINT and bool(self.stop))
        self.stop = self.stop or signal.Signals(number).name


@contextmanager
def _handle_signals() -> Iterator[_StopRequest]:
    """Handle signals; called after Spark has started, which installs its own handler.

    SIGTERM and SIGHUP are handled until the process ends: a signal that arrives while Spark stops
    must not change the exit code of a run that has ended.
    """
    request = _StopRequest(received_signal())
    before = signal.signal(signal.SIGINT, request.on_signal)
    for number in ending_signals():
        signal.signal(number, request.on_signal)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)


def _screen(arguments: RunArguments) -> Screen:
    if arguments.output is Output.JSON:
        return JsonScreen()
    if arguments.live and sys.stdout.isatty():
        return LiveScreen(Console())
    return LineScreen()


def _duration_s(text: str | None) -> float | None:
    return None if text is None else milliseconds(text, "--duration") / 1_000


def _checkpoint_config(arguments: RunArguments, settings: Settings) -> CheckpointConfig:
    if arguments.forced and arguments.unaligned is False:
        raise ConfigError("--forced", "contradicts --no-unaligned")
    chosen: Unaligned | None = "forced" if arguments.forced else arguments.unaligned
    try:
        return replace(
            settings.checkpoint,
            interval=arguments.interval,
            alignment_timeout=arguments.alignment_timeout,
            unaligned=settings.value("checkpoint.unaligned") if chosen is None else chosen,
        )
    except ConfigError as error:
        flag = f"--{error.option.replace('_', '-')}"
        raise ConfigError(flag, error.reason) from error


class Serving:
    """Serves a run: probes from the start, the rest from `serve` on."""

    def __init__(self, address: str, public_url: str | None = None) -> None:
        """Listen and respond to probes, unless the address is `off`."""
        self._made: RunServer | None = None
        self._problem = ""
        if address == OFF:
            return
        try:
            # Imported here: it needs an extra, and takes time that `--serve off` saves.
            from cutwater.server import app  # noqa: PLC0415
        except ConfigError as error:
            if address != AUTO:
                raise ConfigError("--serve", error.reason) from error
            self._problem = f"no dashboard: {error.reason}"
            return
        from cutwater.server.auth import PublicUrl, token_from_environment  # noqa: PLC0415
        from cutwater.server.uvicorn_server import Endpoint, bind  # noqa: PLC0415

        public = None if public_url is None else PublicUrl.of(public_url)
        endpoint = Endpoint() if address == AUTO else Endpoint.of(address)
        try:
            token_from_environment()
            self._made = app.RunServer(bind(endpoint), endpoint.host, public)
        except (CutwaterError, OSError) as error:
            if address != AUTO:
                raise
            self._problem = f"no dashboard: {_reason(error)}"

    @contextmanager
    def serve(self, run: "PipelineRun", show: Callable[[str], None]) -> Iterator[None]:
        """Serve a run inside the context; stop the server at its end."""
        try:
            self._show(run, show)
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server; may be called again."""
        if self._made is not None:
            self._made.server.stop()
            self._made = None

    def _show(self, run: "PipelineRun", show: Callable[[str], None]) -> None:
        if self._problem:
            show(self._problem)
        if self._made is None:
            return
        try:
            token = self._made.show(run)
        except Exception as error:  # noqa: BLE001 - the pipeline runs in any case
            show(f"no dashboard: {_reason(error)}")
            return
        # On a line of its own: an address with text after it is hard to click on.
        show(f"dashboard and API at {self._made.url}")
        show(f"to make changes there: {token.hint}")


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return error.reason
    return error.message if isinstance(error, CutwaterError) else repr(error)

"""`cutwater run`: run a pipeline until its input ends, a signal comes or its time is up.

Everything that can be wrong with the command and the file is found before Spark starts. Ctrl-C,
SIGTERM and SIGHUP ask for a stop with a final checkpoint; a second Ctrl-C ends the run at once,
which loses nothing that a checkpoint holds. Signals only leave a mark, and the loop acts on it: a
handler that called into a run could meet a lock that the interrupted line holds. Before the
pipeline runs, a signal ends the command at once (`cli.signals`).
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from cutwater.cli.commands.change_text import change_lines
from cutwater.cli.commands.plan import AllowDropped, AllowNew, Debug, Parameters, Swap, Target
from cutwater.cli.commands.serving import AUTO, PublicUrlOption, ServeOption, Serving
from cutwater.cli.limits import raise_open_files
from cutwater.cli.live import JsonScreen, LineScreen, LiveScreen, Screen
from cutwater.cli.load import load, parse_pairs
from cutwater.cli.logs import LogFormat, LogFormatOption, log_as
from cutwater.cli.output import INTERRUPTED, SUCCESS, UNSAVED, Output
from cutwater.cli.signals import heard, taken
from cutwater.config.options import CheckpointConfig, Unaligned
from cutwater.config.settings import MASTER_DEFAULT, STORE_DEFAULT, Settings, read_settings
from cutwater.errors import ConfigError
from cutwater.operations.rewind.rewind import resolve_rewind_target
from cutwater.planning.planner import plan
from cutwater.store.backends.location import Location
from cutwater.units import milliseconds

if TYPE_CHECKING:
    from cutwater.run import PipelineRun
    from cutwater.runtime.reporting.status import RunResult

HELP: Final = """Run a pipeline, with a checkpoint every few seconds.

Goes on from the last checkpoint in the store, or begins there. Ctrl-C (or SIGTERM, or SIGHUP unless
it is ignored) takes a final checkpoint and stops; a second Ctrl-C stops at once, and the next run
goes on from the last checkpoint. A run goes on when nobody reads its output any more.

\b
  cutwater run orders.py
  cutwater run orders.py --interval 5s --store /data/orders
  cutwater run orders.py --store s3://bucket/orders
  cutwater run orders.py --available-now       process what is there, then exit
  cutwater run orders.py --swap orders         the source reads elsewhere now; keep all state
  cutwater run orders.py:make --param env=prod --master spark://host:7077

\b
Exit codes
  0    finished, or stopped as asked
  1    the pipeline failed
  2    wrong use: an option, the file or the pipeline
  3    another process runs this pipeline, or has taken it over
  4    stopped as asked, but the last checkpoint failed; the next run goes on from the one before
  129  ended by SIGHUP before the pipeline ran
  130  stopped at once by a second Ctrl-C
  143  ended by SIGTERM before the pipeline ran
"""

DEFAULT_STORE: Final = STORE_DEFAULT
_DEFAULTS: Final = CheckpointConfig()
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """What `cutwater run` was asked; `help` says what each means."""

    target: Target
    param: Parameters = field(default_factory=list)
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where checkpoints are kept: a directory that lasts, or s3://, gs://, az://.",
        ),
    ] = DEFAULT_STORE
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="A fast local directory for work in progress; may be lost.",
            show_default="a temporary directory",
        ),
    ] = None
    master: Annotated[
        str,
        typer.Option(metavar="MASTER", help="Spark's master: local[4], or a cluster's address."),
    ] = MASTER_DEFAULT
    conf: Annotated[
        list[str],
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."),
    ] = field(default_factory=list)
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
        bool, typer.Option("--available-now", help="Process what is there, then exit.")
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
            help="The checkpoint to begin with: the latest, the number of one, the name of a "
            "savepoint, or a time. One that is not the latest is a rewind: needs --yes. With none, "
            "the pipeline begins at its beginning, and is refused if it has taken a checkpoint.",
        ),
    ] = "latest"
    yes: Annotated[
        bool, typer.Option("--yes", help="Take the sinks back to the checkpoint of --from.")
    ] = False
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run it under another name, as a fork of it is run.",
            show_default="the pipeline's own",
        ),
    ] = None
    takeover: Annotated[
        bool,
        typer.Option("--takeover", help="Run even if another process seems to; that one ends."),
    ] = False
    allow_new: AllowNew = False
    allow_dropped: AllowDropped = False
    swap: Swap = field(default_factory=list)
    moved: Annotated[
        list[str],
        typer.Option(
            metavar="SINK",
            help="The sink's target is the one it wrote to before, at another address or on "
            "another server now. May be repeated.",
        ),
    ] = field(default_factory=list)
    serve: ServeOption = AUTO
    public_url: PublicUrlOption = None
    log_format: LogFormatOption = LogFormat.TEXT
    output: Annotated[Output, typer.Option(help="For people or for programs.")] = Output.TEXT
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Redraw a view in place; lines if not a terminal."),
    ] = True
    debug: Debug = False


def run_command(arguments: RunArguments) -> int:
    """Run the pipeline to its end; return the exit code.

    Raises:
        CutwaterError: If the command is wrong, or the pipeline could not start or failed.
    """
    duration_s = _duration_s(arguments.duration)
    settings = read_settings(os.environ)
    checkpoint = _checkpoint_config(arguments, settings)
    conf = {**settings.spark, **parse_pairs("--conf", arguments.conf)}
    parameters = parse_pairs("--param", arguments.param)
    location = store_location(arguments.store)
    log_as(arguments.log_format)
    raise_open_files()

    # Here, since `plan`, `doctor` and `--help` must work where Spark does not.
    from cutwater.run import RunOptions, start  # noqa: PLC0415
    from cutwater.spark.session.session import (  # noqa: PLC0415
        check_session,
        embedded_session,
        ship_by_value,
    )

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
        session = cache(partial(embedded_session, arguments.master, app_name=name, conf=conf))
        loaded = load(arguments.target, parameters, session)
        # Planned here although a run plans it again: a mistake shows before Spark has started.
        plan(loaded.pipeline)
        pipeline = arguments.name or loaded.pipeline.name
        if arguments.start_from not in {"latest", "none"} and not arguments.yes:
            _check_consent(arguments, pipeline)
        screen.tell(f"starting Spark on {arguments.master}")
        spark = session()
        for warning in check_session(spark):
            screen.tell(f"warning: {warning}")
        ship_by_value(loaded.modules)
        screen.tell(f"starting {pipeline}; its checkpoints are in {options.store}")
        run = start(loaded.pipeline, spark, options)
        with _listening() as asked:
            if run.change is not None and run.change.is_change:
                for line in change_lines(run.change):
                    screen.tell(line)
            with serving.of(run, screen.tell):
                result = _follow(run, screen, duration_s, asked)
        if result is None:
            # The JVM goes with this process; to wait for it would not be "at once".
            return INTERRUPTED
    spark.stop()
    return UNSAVED if result.problem else SUCCESS


def _check_consent(arguments: RunArguments, pipeline: str) -> None:
    """Refuse to go back in time unasked, and say what it would do; before Spark has started."""
    target = resolve_rewind_target(
        pipeline, to=arguments.start_from, store=arguments.store, option="--from"
    )
    if target is not None:
        reason = f"{target.title} is not where {pipeline} stands: this is a rewind"
        number = target.decision.checkpoint_id
        look = f"`cutwater rewind {pipeline} --to {number}` shows what it does"
        raise ConfigError("--from", f"{reason}. {look}; add --yes to do it")


def store_location(text: str) -> Location:
    """Return the place that `--store` names.

    Raises:
        ConfigError: If it is no place for a store, or for one that outlives this command.
    """
    location = Location.of(text, "--store")
    if location.kind == "memory":
        raise ConfigError("--store", f"{text} would end with this command; it is for tests")
    return location


def _follow(
    run: "PipelineRun", screen: Screen, duration_s: float | None, asked: "_Asked"
) -> "RunResult | None":
    """Show the run until it ends; return how it did, or None if it was ended at once."""
    end_s = None if duration_s is None else time.monotonic() + duration_s
    is_stopping = False
    while (result := run.wait(_LOOK_S)) is None:
        screen.show(run.status())
        if asked.kill:
            screen.tell("stopped at once, without a checkpoint")
            run.kill()
            return None
        is_over = end_s is not None and time.monotonic() >= end_s
        if not is_stopping and (asked.stop or is_over):
            why = asked.stop or f"{duration_s:g} s are over"
            screen.tell(f"{why}: taking a final checkpoint; Ctrl-C again to stop at once")
            run.stop(checkpoint=True)
            is_stopping = True
    screen.show(run.status())
    screen.end(result)
    return result


@dataclass(slots=True)
class _Asked:
    """What signals have asked for.

    Attributes:
        stop: Why the run is to stop; empty while it is not.
        kill: Whether it is to end at once.
    """

    stop: str = ""
    kill: bool = False

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal. A third Ctrl-C does not even wait for the loop."""
        if number == signal.SIGINT and self.kill:
            os._exit(INTERRUPTED)
        self.kill = self.kill or (number == signal.SIGINT and bool(self.stop))
        self.stop = self.stop or signal.Signals(number).name


@contextmanager
def _listening() -> Iterator[_Asked]:
    """Hear signals; after Spark has started, which installs a handler of its own.

    SIGTERM and SIGHUP are heard until the process ends: one that comes while Spark is stopped must
    not spoil the exit code of a run that has ended.
    """
    asked = _Asked(heard())
    before = signal.signal(signal.SIGINT, asked.hear)
    for number in taken():
        signal.signal(number, asked.hear)
    try:
        yield asked
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
    told: Unaligned | None = "forced" if arguments.forced else arguments.unaligned
    try:
        return replace(
            settings.checkpoint,
            interval=arguments.interval,
            alignment_timeout=arguments.alignment_timeout,
            unaligned=settings.value("checkpoint.unaligned") if told is None else told,
        )
    except ConfigError as error:
        flag = f"--{error.option.replace('_', '-')}"
        raise ConfigError(flag, error.reason) from error

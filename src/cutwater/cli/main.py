"""The program `cutwater`: its commands, and the handling of their errors.

A command is a function of one dataclass, whose fields are its arguments; `_add` presents them to
typer as parameters. An error is one sentence with a code and a next step; only the hidden option
`--debug` shows its stack trace.
"""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Protocol, TypeVar, get_type_hints

import typer

from cutwater._version import __version__
from cutwater.cli.commands import (
    config,
    doctor,
    fork,
    migrate,
    plan,
    requests,
    rewind,
    run,
    state,
    tables,
    ui,
    warm_up,
)
from cutwater.cli.commands.checkpoints import diff, prune
from cutwater.cli.commands.checkpoints import inspect as checkpoints
from cutwater.cli.lookup import name_of
from cutwater.cli.output import (
    FAILED,
    HUNG_UP,
    INTERRUPTED,
    SUCCESS,
    TERMINATED,
    complain,
    exit_code_of,
    report_error,
    report_unexpected,
    say,
)
from cutwater.cli.process import Ended, end_on_signals, lost_output, make_output_lossy
from cutwater.config.settings import DEFAULT, FILE, FILE_VARIABLE, Settings, read_settings
from cutwater.errors import CutwaterError


def _group(name: str, text: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=text,
        no_args_is_help=True,
        # Only at the top level: `cutwater --install-completion`.
        add_completion=name == "cutwater",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )


app = _group("cutwater", "One consistent checkpoint for a whole pipeline of Spark streams.")
checkpoints_app = _group("checkpoints", checkpoints.HELP)
app.add_typer(checkpoints_app)
config_app = _group("config", config.HELP)
app.add_typer(config_app)
state_app = _group("state", state.HELP)
app.add_typer(state_app)


class _Arguments(Protocol):
    """The arguments that every command has."""

    @property
    def output(self) -> Enum: ...

    @property
    def debug(self) -> bool: ...


_ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A settings file.", show_default=FILE),
]
_FROM_SETTINGS: Final = frozenset(
    {"store", "scratch", "master", "public_url", "interval", "alignment_timeout"}
)
"""The options whose values may come from a file or the environment."""

_OUTLIVE_OUTPUT: Final = (run.run_command, ui.ui_command)
"""The commands that continue when their output cannot be written."""

AnyArguments = TypeVar("AnyArguments", bound=_Arguments)


def main() -> None:
    """Run the command line of this process, and exit."""
    make_output_lossy()
    end_on_signals()
    try:
        app(prog_name="cutwater")
    except Ended as ended:
        # Before or after the command itself.
        _exit_at_once(exit_code_of(ended.number))


def _exit_at_once(code: int) -> NoReturn:
    """Exit without waiting: threads of a run or of Spark must not hold this process up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    *,
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    file: _ConfigFile = None,
) -> None:
    if version:
        say(f"cutwater {__version__}")
        raise typer.Exit
    if file is not None:
        # Every command reads this variable.
        os.environ[FILE_VARIABLE] = str(file)
    if context.invoked_subcommand not in {None, "config"}:
        try:
            settings = read_settings(os.environ)
        except CutwaterError as error:
            raise typer.Exit(report_error(error, as_json="json" in sys.argv)) from error
        context.default_map = _option_defaults(context.command, settings)


def _option_defaults(command: Any, settings: Settings) -> dict[str, Any]:  # noqa: ANN401 - click's
    """Return the defaults of options that settings provide, by command."""
    inner = getattr(command, "commands", None)
    if inner is not None:
        return {name: _option_defaults(subcommand, settings) for name, subcommand in inner.items()}
    known = {
        option_name: name
        for name in settings.all
        for option_name in (name.removeprefix("checkpoint."),)
    }
    return {
        option.name: settings.value(known[option.name])
        for option in command.params
        if option.name in _FROM_SETTINGS and settings.all[known[option.name]].origin != DEFAULT
    }


def _add(
    name: str,
    arguments: type[AnyArguments],
    command: Callable[[AnyArguments], int],
    text: str,
    group: typer.Typer = app,
) -> None:
    """Make a command of a function and the dataclass of its arguments."""

    def invoke(**values: Any) -> None:  # noqa: ANN401 - typer has checked them
        raise typer.Exit(_call_command(command, arguments(**values)))

    hints = get_type_hints(arguments, include_extras=True)
    invoke.__annotations__ = hints
    invoke.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                argument.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[argument.name],
                default=_default(argument),
            )
            for argument in fields(arguments)  # type: ignore[arg-type]
        ]
    )
    group.command(name, help=text)(invoke)


def _default(argument: Any) -> object:  # noqa: ANN401 - a field of any type
    if argument.default_factory is not MISSING:
        return argument.default_factory()
    return inspect.Parameter.empty if argument.default is MISSING else argument.default


def _call_command(command: Callable[[AnyArguments], int], arguments: AnyArguments) -> int:
    """Call a command; return its exit code, or that of its error."""
    try:
        code = command(_with_name(arguments))
    except KeyboardInterrupt:
        complain("Interrupted; the next run resumes from the last checkpoint.")
        code = INTERRUPTED
    except Ended as ended:
        complain(f"Ended by {ended.number.name}; the next run resumes from the last checkpoint.")
        code = exit_code_of(ended.number)
    except CutwaterError as error:
        if arguments.debug:
            raise
        code = report_error(error, as_json=arguments.output.value == "json")
    except Exception as error:
        if arguments.debug:
            raise
        code = report_unexpected(error, as_json=arguments.output.value == "json")
    if code == SUCCESS and command not in _OUTLIVE_OUTPUT:
        code = _check_output()
    if code in {INTERRUPTED, TERMINATED, HUNG_UP}:
        _exit_at_once(code)
    return code


def _with_name(arguments: AnyArguments) -> AnyArguments:
    """Replace the spec of a declarative project by the name of its pipeline."""
    given: object = getattr(arguments, "pipeline", None)
    if not isinstance(given, str):
        return arguments
    return replace(arguments, pipeline=name_of(given))  # type: ignore[type-var]


def _check_output() -> int:
    """Return the exit code of a command that has succeeded: FAILED if output was lost."""
    sys.stdout.flush()
    lost = lost_output()
    if lost is None:
        return SUCCESS
    way_out = "Free space where stdout is written, and run the command again."
    complain(f"The output is incomplete: {lost.strerror}. {way_out}")
    return FAILED


_add("plan", plan.PlanArguments, plan.plan_command, plan.HELP)
_add("run", run.RunArguments, run.run_command, run.HELP)
_add("adopt", migrate.AdoptArguments, migrate.adopt_command, migrate.ADOPT_HELP)
_add("eject", migrate.EjectArguments, migrate.eject_command, migrate.EJECT_HELP)
_add("rewind", rewind.RewindArguments, rewind.rewind_command, rewind.HELP)
_add("fork", fork.ForkArguments, fork.fork_command, fork.HELP)
_add("tables", tables.TablesArguments, tables.tables_command, tables.HELP)
_add("ui", ui.UiArguments, ui.ui_command, ui.HELP)
_add("doctor", doctor.DoctorArguments, doctor.doctor_command, doctor.HELP)
_add("warm-up", warm_up.WarmUpArguments, warm_up.warm_up_command, warm_up.HELP)

_add(
    "savepoint",
    requests.SavepointArguments,
    requests.savepoint_command,
    requests.SAVEPOINT_HELP,
)
_add(
    "checkpoint",
    requests.CheckpointArguments,
    requests.checkpoint_command,
    requests.CHECKPOINT_HELP,
)
_add("stop", requests.StopArguments, requests.stop_command, requests.STOP_HELP)

_add(
    "list",
    checkpoints.ListArguments,
    checkpoints.list_command,
    checkpoints.LIST_HELP,
    checkpoints_app,
)
_add(
    "show",
    checkpoints.ShowArguments,
    checkpoints.show_command,
    checkpoints.SHOW_HELP,
    checkpoints_app,
)
_add(
    "verify",
    checkpoints.VerifyArguments,
    checkpoints.verify_command,
    checkpoints.VERIFY_HELP,
    checkpoints_app,
)
_add("diff", diff.DiffArguments, diff.diff_command, diff.HELP, checkpoints_app)
_add("abort", requests.AbortArguments, requests.abort_command, requests.ABORT_HELP, checkpoints_app)
_add("prune", prune.PruneArguments, prune.prune_command, prune.HELP, checkpoints_app)

_add("show", config.ShowArguments, config.show_command, config.SHOW_HELP, config_app)

_add("show", state.ShowArguments, state.show_command, state.SHOW_HELP, state_app)
_add("diff", state.DiffArguments, state.diff_command, state.DIFF_HELP, state_app)

if __name__ == "__main__":
    main()

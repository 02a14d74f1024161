"""`cutwater ui`: the dashboard of all pipelines of a store, running or stopped.

Needs neither Spark nor a pipeline's file. Requests to a running pipeline go through the store, as
those of the commands do.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from cutwater.cli.options import DEFAULT_STORE, Debug, OutputForm, PublicUrlOption
from cutwater.cli.output import SUCCESS, Output, say, say_json
from cutwater.cli.process import Ended
from cutwater.errors import ConfigError
from cutwater.store.backends.location import existing_backend

HELP: Final = """Show the pipelines of a store in a browser.

Works whether they run or not, and needs no Spark. Shows checkpoints, recoveries, tables and what a
rewind would do. A checkpoint, savepoint or stop of a running pipeline can be requested with the
token that this command writes to a file. Runs until Ctrl-C, SIGTERM or SIGHUP.

\b
  cutwater ui
  cutwater ui s3://bucket/orders --listen 8080
"""
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class UiArguments:
    store: Annotated[
        str, typer.Argument(metavar="[STORE]", help="Where the checkpoints are kept.")
    ] = DEFAULT_STORE
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="The address to listen on.",
            show_default="port 4080 of this machine, or the next free one",
        ),
    ] = None
    public_url: PublicUrlOption = None
    output: OutputForm = Output.TEXT
    debug: Debug = False


def ui_command(arguments: UiArguments) -> int:
    """Serve a store until Ctrl-C or a signal."""
    try:
        from cutwater.server import Endpoint, PublicUrl, serve_store  # noqa: PLC0415 - an extra
    except ConfigError as error:
        raise ConfigError("ui", error.reason) from error

    backend = existing_backend(arguments.store, "STORE")
    endpoint = None if arguments.listen is None else Endpoint.of(arguments.listen, "--listen")
    public = None if arguments.public_url is None else PublicUrl.of(arguments.public_url)
    with tempfile.TemporaryDirectory(prefix="cutwater-ui-") as directory:
        server, token = serve_store(backend, Path(directory), endpoint, public)
        url = server.url if public is None else public.text
        try:
            if arguments.output is Output.JSON:
                file = None if token.file is None else str(token.file)
                say_json({"url": url, "store": backend.url, "token_file": file})
            else:
                say(f"{backend.url} is shown at {url}; {token.hint}. Ctrl-C ends it.")
            while True:
                time.sleep(_LOOK_S)
        except (KeyboardInterrupt, Ended):
            return SUCCESS
        finally:
            server.stop()

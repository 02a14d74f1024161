"""Options and arguments that several commands share, each declared once with its help text.

The options of a single command are declared in its module, in `cli.commands`.
"""

from typing import Annotated, Final

import typer

from cutwater.cli.output import Output
from cutwater.config.settings import STORE_DEFAULT
from cutwater.errors import ConfigError
from cutwater.store.backends.location import Location

DEFAULT_STORE: Final = STORE_DEFAULT

PipelineName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="The pipeline's name or uuid, or the spark-pipeline.yml of a declarative project.",
    ),
]
StoreUrl = Annotated[str, typer.Option(metavar="URL", help="Where its checkpoints are kept.")]
OutputForm = Annotated[Output, typer.Option(help="Text for people, or JSON for programs.")]
CheckpointName = Annotated[
    str,
    typer.Argument(metavar="ID|NAME", help="A checkpoint's number, a savepoint's name, or latest."),
]

AllowNew = Annotated[
    bool,
    typer.Option(
        "--allow-new",
        help="Start stateful steps, sources and sinks that are not in the checkpoint.",
    ),
]
AllowDropped = Annotated[
    bool,
    typer.Option(
        "--allow-dropped",
        help="Drop stateful steps, sources and sinks that are no longer in the code.",
    ),
]
Swap = Annotated[
    list[str],
    typer.Option(
        metavar="SOURCE",
        help="This source has been replaced since the checkpoint: read it from its beginning, and "
        "keep all state. May be repeated.",
    ),
]

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Your Python file, or FILE:NAME. NAME is a pipeline in it, or a function that "
        "returns one; not needed if there is only one pipeline. Or the spark-pipeline.yml of a "
        "declarative project, or its directory.",
    ),
]
Parameters = Annotated[
    list[str],
    typer.Option(
        "--param",
        metavar="KEY=VALUE",
        help="For the function NAME; may be repeated. For a declarative project: catalog and "
        "database, in place of its own.",
    ),
]
Master = Annotated[
    str, typer.Option(metavar="MASTER", help="Spark's master: local[4], or a cluster's address.")
]
Conf = Annotated[
    list[str],
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
]
Debug = Annotated[bool, typer.Option("--debug", hidden=True)]

PublicUrlOption = Annotated[
    str | None,
    typer.Option(
        "--public-url",
        metavar="URL",
        help="The address of a TLS proxy in front of the API and dashboard; everything except "
        "probes then needs the token.",
        show_default="none",
    ),
]


def store_location(text: str) -> Location:
    """Parse `--store`, which must be the address of a store that outlives this command."""
    location = Location.of(text, "--store")
    if location.kind == "memory":
        raise ConfigError(
            "--store", f"{text} would be lost when this command ends; it is for tests"
        )
    return location

"""`cutwater warm-up`: keep the classes that Spark loads, so that later starts are shorter.

The pipeline of `cutwater doctor --self-test` runs once in a JVM that writes its classes to an
archive when it ends (`spark.session.class_archive`).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from cutwater.cli.commands.self_test import Phase, SelfTest
from cutwater.cli.load import parse_pairs
from cutwater.cli.options import Conf, Debug, OutputForm
from cutwater.cli.output import FAILED, SUCCESS, Output, bytes_text, complain, say, say_json
from cutwater.spark.session.java import use_java

HELP: Final = """Make every later start of Spark on this machine shorter.

Runs the small pipeline of `cutwater doctor --self-test` once, and keeps the classes that Spark
loads in an archive in your cache directory, about 200 MB. Every later `cutwater run` by the same
user, with the same Java and the same Spark, maps the archive into memory instead of loading the
classes one by one. An archive that does not fit is ignored. Takes about half a minute; run it when
you build a container image.

\b
  cutwater warm-up
"""

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpArguments:
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing if there is an archive that fits.")
    ] = False
    conf: Conf = field(default_factory=list)
    output: OutputForm = Output.TEXT
    debug: Debug = False


def warm_up_command(arguments: WarmUpArguments) -> int:
    """Make the archive; return 1 if the pipeline did not run or Java wrote none."""
    # Imported here: it needs pyspark, and other commands must work without.
    from cutwater.spark.session.class_archive import (  # noqa: PLC0415
        ArchiveInProgress,
        find_archive,
    )

    java = use_java()
    existing = find_archive(java) if arguments.if_missing else None
    if existing is not None:
        _show(arguments, existing, "There is an archive already")
        return SUCCESS
    archive = ArchiveInProgress(java)
    conf = dict(parse_pairs("--conf", arguments.conf))
    conf[_JAVA_OPTIONS] = f"{archive.options} {conf.get(_JAVA_OPTIONS, '')}".strip()
    phases = SelfTest(conf=conf).run()
    path = archive.finish()
    failed = next((phase for phase in phases if not phase.ok), None)
    if failed is not None:
        complain(_failure(failed))
        return FAILED
    _show(arguments, path, "Later starts of Spark use this archive")
    return SUCCESS


def _failure(phase: Phase) -> str:
    return f"The pipeline failed to {phase.name}: {phase.found}. Run `cutwater doctor --self-test`."


def _show(arguments: WarmUpArguments, path: Path, text: str) -> None:
    size_bytes = path.stat().st_size
    if arguments.output is Output.JSON:
        say_json({"archive": str(path), "size_bytes": size_bytes})
    else:
        say(f"{text}: {path}, {bytes_text(size_bytes)}.")

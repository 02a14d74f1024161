"""Imports the Python definition files of a project, by the rules of `spark-pipelines`.

Each file is a module of its own, with the project's directory as the working directory and `spark`
as a global. An error in a file is a problem with its line, and the other files are imported
nevertheless. A file that uses the session while it is imported needs Spark; the caller starts Spark
and imports all files again.
"""

import importlib.util
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import pipelines
from pyspark.pipelines import api
from pyspark.pipelines.graph_element_registry import graph_element_registration_context

from cutwater.declarative.definitions import Definitions
from cutwater.declarative.names import parts_of
from cutwater.declarative.session import EffectRefused, NeedsSpark, ProjectSession, standing_in
from cutwater.pipeline.nodes import SourceLocation
from cutwater.spark.session.requirements import needs_session
from cutwater.spark.versions import explain_error

_AUTO_CDC: Final = "create_auto_cdc_flow"
_HINTS: Final = (
    (("'expect",), "expectations are not part of Apache Spark"),
    (("'once'",), "flows that run once are not part of Apache Spark's decorators"),
    (("'dlt'", "databricks"), "the modules of Databricks are not part of Apache Spark"),
)
"""Words of an error, and what they mean: what a user may know from Databricks."""


def import_definitions(
    root: Path, files: Iterable[Path], session: ProjectSession, spark_version: str
) -> Definitions:
    """Import the Python files and collect the SQL files.

    Raises:
        NeedsSpark: If a file uses the session, and Spark has not started.
    """
    definitions = Definitions()
    with (
        working_directory(root),
        graph_element_registration_context(definitions),
        _refusing_changes(definitions),
        standing_in(session),
    ):
        for file in files:
            _read(root, file, session, definitions, spark_version)
    return definitions


def _read(
    root: Path, file: Path, session: ProjectSession, definitions: Definitions, version: str
) -> None:
    if file.suffix == ".sql":
        definitions.register_sql(file.read_text("utf-8"), file)
        return
    if file.suffix != ".py":
        reason = "is no definition file: those end in .py or .sql; change the glob of the spec"
        definitions.refuse(SourceLocation(str(file), 1), f"{file.name} {reason}")
        return
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["spark"] = session
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, NeedsSpark) or needs_session(error):
            raise NeedsSpark from error
        place = line_of(error, root, SourceLocation(str(file), 1))
        is_effect = isinstance(error, EffectRefused)
        reason = f"{file.name} {error}" if is_effect else reason_of(error, version)
        definitions.refuse(place, reason)


def line_of(error: BaseException, root: Path, place: SourceLocation) -> SourceLocation:
    """Return the innermost line of the project's own code; a given one if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return SourceLocation(error.filename, error.lineno or 1)
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        # A virtual environment can lie below the project's directory.
        if Path(frame.filename).is_relative_to(root) and "site-packages" not in frame.filename
    ]
    return SourceLocation(own[-1].filename, own[-1].lineno or 1) if own else place


def reason_of(error: BaseException, version: str) -> str:
    """Return an error of the user's code in one line, with what is known about it."""
    # The text of an error of the JVM begins with the call; what failed is in the Java exception.
    said = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    text = str(said).strip().split("\n", 1)[0].split(" SQLSTATE", 1)[0].rstrip(".; ")
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    why = explain_error(error, version)
    if not why and isinstance(error, AttributeError | ImportError | TypeError):
        why = next(
            (hint for words, hint in _HINTS if any(word in text.lower() for word in words)), ""
        )
    return f"{reason}: {why}" if why else reason


@contextmanager
def working_directory(root: Path) -> Iterator[None]:
    """Make a directory the working directory of this process, as `spark-pipelines` does."""
    before = Path.cwd()
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _refusing_changes(definitions: Definitions) -> Iterator[None]:
    """Refuse flows of changes where they are declared.

    pyspark's own function needs the packages of Spark Connect before it reaches any registry.
    """
    # The oldest version with declarative pipelines has no such function.
    original: Callable[..., Any] | None = getattr(pipelines, _AUTO_CDC, None)

    def refuse(target: str, *_: Any, name: str | None = None, **__: Any) -> None:  # noqa: ANN401
        caller = traceback.extract_stack()[-2]
        place = SourceLocation(caller.filename, caller.lineno or 1)
        definitions.refuse_changes(place, name or target, parts_of(target))

    for module in (pipelines, api):
        setattr(module, _AUTO_CDC, refuse)
    try:
        yield
    finally:
        for module in (pipelines, api):
            if original is None:
                delattr(module, _AUTO_CDC)
            else:
                setattr(module, _AUTO_CDC, original)

"""Load a user's file and find the pipeline in it: `orders.py`, `orders.py:name`, `orders.py:make`.

Or load a declarative project, by its `spark-pipeline.yml` or the directory of that file.

The file is imported as a module under its own name, with its directory on the path, as if it were
run. `Loaded.modules` are the modules that exist on this machine only: a worker cannot import them,
so they must be shipped by value. An error in the file names the file's own line.

Most files can be loaded without Spark. A file with `@udf("long")` or `F.col("x")` at its top level
cannot; only such a file is loaded again after Spark has started.
"""

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Final

from cutwater.cli.session import Prepare, SessionStarter
from cutwater.declarative.spec import names_project
from cutwater.errors import ConfigError, CutwaterError, DeclarationError, SessionError
from cutwater.pipeline.pipeline import Pipeline
from cutwater.spark.session.requirements import needs_session
from cutwater.spark.versions import DECLARATIVE_PIPELINES, refusal
from cutwater.store.backends.directories import is_directory, is_file

_PREFIX: Final = "cutwater_file_"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline, its file, and the modules of the file's directory that the file has imported.

    Attributes:
        prepare: Called with the session before the pipeline is run: a declarative project creates
            its tables and views in the catalog.
    """

    pipeline: Pipeline
    modules: tuple[ModuleType, ...] = ()
    prepare: Prepare = lambda _: None


def parse_pairs(option: str, texts: Sequence[str]) -> Mapping[str, str]:
    """Parse `key=value` texts; a repeated key is a `ConfigError`."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(option, f"{text!r} is not of the form key=value")
        if key.strip() in pairs:
            raise ConfigError(option, f"{key.strip()} is repeated")
        pairs[key.strip()] = value
    return pairs


def load(target: str, parameters: Mapping[str, str], start_spark: SessionStarter) -> Loaded:
    """Load a file and return the pipeline that the target names.

    The target is `FILE`, for the only pipeline in it, or `FILE:NAME`, for the pipeline or the
    function of that name, which is called with the parameters. `start_spark` is called if the file
    cannot be loaded without Spark. The file's directory stays on the path, since a function may
    import when it is called. A target that is a YAML file, or a directory with a spec, is a
    declarative project, which always needs Spark.

    Raises:
        ConfigError: If there is no such file, name or parameter.
        DeclarationError: If the file or the function fails, naming the line.
        PlanError: With all problems of a project.
        SessionError: If Spark is needed and cannot be started.
    """
    if names_project(Path(target)):
        return _load_project(Path(target), parameters, start_spark)
    file, name = _split(target)
    try:
        return _load(file, name, parameters)
    except DeclarationError as error:
        if not needs_session(error.__cause__):
            raise
    start_spark()
    return _load(file, name, parameters)


def _load_project(path: Path, parameters: Mapping[str, str], start_spark: SessionStarter) -> Loaded:
    missing = refusal(DECLARATIVE_PIPELINES, version("pyspark"))
    if missing is not None:
        raise SessionError(f"{missing}: {DECLARATIVE_PIPELINES.instead}.")
    # Imported here: it needs a Spark that has declarative pipelines.
    from cutwater.declarative.project import load_project  # noqa: PLC0415

    project = load_project(path, parameters, start_spark.for_project)
    return Loaded(project.pipeline, prepare=project.publish)


def _load(file: Path, name: str, parameters: Mapping[str, str]) -> Loaded:
    known = set(sys.modules)
    module = _import(file)
    found = getattr(module, name, None) if name else _only_pipeline(file, module)
    if isinstance(found, Pipeline):
        if parameters:
            reason = (
                f"{file} has a pipeline; only a function that returns a pipeline takes parameters"
            )
            raise ConfigError("--param", reason)
        pipeline = found
    elif callable(found):
        pipeline = _call(file, found, name, parameters)
    else:
        what = "no such name" if not hasattr(module, name) else "no pipeline or function"
        raise ConfigError("FILE", f"{file} has {what}: {name}; {_offer(module)}")
    new = [sys.modules[name] for name in sorted(sys.modules.keys() - known)]
    beside = (other for other in new if other is not module and _is_in(other, file.parent))
    return Loaded(pipeline, (module, *beside))


def _split(target: str) -> tuple[Path, str]:
    file, name = target, ""
    if not is_file(Path(target)) and ":" in target:
        file, _, name = target.rpartition(":")
    path = Path(file).absolute()
    if path.suffix != ".py" or not is_file(path):
        what = "is a directory" if is_directory(path) else "does not exist"
        reason = what if not is_file(path) else "does not end in .py"
        hint = "name the Python file of your pipeline, or the spec of a declarative project"
        raise ConfigError("FILE", f"{file} {reason}; {hint}")
    return path, name


def _import(file: Path) -> ModuleType:
    name = _module_name(file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError("FILE", f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    # Before it runs: dataclasses and pickle look a class's module up by its name.
    sys.modules[name] = module
    try:
        with _name_failing_line(file):
            spec.loader.exec_module(module)
    except CutwaterError:
        del sys.modules[name]
        raise
    return module


def _module_name(file: Path) -> str:
    """Return the file's stem, with a prefix if another module has that name."""
    stem = re.sub(r"\W", "_", file.stem)
    if stem in sys.modules:
        return _PREFIX + stem
    try:
        spec = importlib.util.find_spec(stem)
    except (ImportError, ValueError):
        return _PREFIX + stem
    if spec is None or (spec.origin and Path(spec.origin).resolve() == file.resolve()):
        return stem
    return _PREFIX + stem


def _is_in(module: ModuleType, directory: Path) -> bool:
    """Return whether a module lies in this directory itself, not in packages installed below it."""
    if not getattr(module, "__file__", None):
        return False
    top = module.__name__.partition(".")[0]
    file = Path(str(module.__file__)).absolute()
    return file.is_relative_to(directory) and file.relative_to(directory).parts[0] in {
        top,
        f"{top}.py",
    }


def _only_pipeline(file: Path, module: ModuleType) -> Pipeline:
    pipelines = _pipelines(module)
    if len({id(pipeline) for pipeline in pipelines.values()}) == 1:
        return next(iter(pipelines.values()))
    count = "several pipelines" if pipelines else "no pipeline at its top level"
    raise ConfigError("FILE", f"{file} has {count}; {_offer(module)}")


def _pipelines(module: ModuleType) -> Mapping[str, Pipeline]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}


def _offer(module: ModuleType) -> str:
    """List the names that the target could have had."""
    file = Path(str(module.__file__)).name
    makers = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__annotations__.get("return") in {Pipeline, "Pipeline", "cutwater.Pipeline"}
    ]
    names = [*_pipelines(module), *makers]
    if not names:
        return "write `pipeline = Pipeline(…)`, or name a function that returns one"
    return f"name one: {', '.join(f'{file}:{name}' for name in names)}"


def _call(
    file: Path, function: Callable[..., object], name: str, parameters: Mapping[str, str]
) -> Pipeline:
    _check_parameters(function, name, parameters)
    with _name_failing_line(file):
        made = function(**parameters)
    if not isinstance(made, Pipeline):
        reason = f"{file}:{name} returns {type(made).__name__} and not a Pipeline"
        raise ConfigError("FILE", reason)
    return made


def _check_parameters(
    function: Callable[..., object], name: str, parameters: Mapping[str, str]
) -> None:
    try:
        takes = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError("FILE", f"{name} has no readable signature") from error
    kinds = inspect.Parameter
    by_keyword = {kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY}
    named = {parameter.name: parameter for parameter in takes if parameter.kind in by_keyword}
    listed = f"{name} takes {', '.join(named) or 'no parameters'}"
    unknown = sorted(set(parameters) - set(named))
    if unknown and not any(parameter.kind is kinds.VAR_KEYWORD for parameter in takes):
        raise ConfigError("--param", f"{', '.join(unknown)}: no such parameter; {listed}")
    required = (key for key, parameter in named.items() if parameter.default is kinds.empty)
    missing = [key for key in required if key not in parameters]
    if missing:
        hint = " ".join(f"--param {key}=…" for key in missing)
        raise ConfigError("--param", f"{name} needs {', '.join(missing)} as well; add {hint}")


@contextmanager
def _name_failing_line(file: Path) -> Iterator[None]:
    """Turn an error of the user's code into one that names its line."""
    try:
        yield
    except CutwaterError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise DeclarationError(_line_of(error, file), reason.rstrip(".")) from error


def _line_of(error: BaseException, file: Path) -> str:
    """Return the innermost line of the user's own code, in this file or its directory."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(file.parent)]
    # A virtual environment can lie below the file's directory.
    own = [frame for frame in own if "site-packages" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)

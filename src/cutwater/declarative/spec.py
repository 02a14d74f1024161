"""The spec of a declarative project: `spark-pipeline.yml`, read by the rules of `spark-pipelines`.

The fields, the required ones and the two forms of a glob are those of `pyspark.pipelines.cli`,
which cannot be imported without Spark Connect. All problems of a spec are reported together, each
with its line. Nothing else of the project is read here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cutwater.errors import ConfigError, PlanError
from cutwater.pipeline.nodes import SourceLocation
from cutwater.store.backends.directories import files_below, is_directory, is_file

SPEC_NAMES: Final = ("spark-pipeline.yaml", "spark-pipeline.yml")
"""The names under which `spark-pipelines` finds a spec in a directory."""

SUFFIXES: Final = frozenset({".yaml", ".yml"})

OVERRIDES: Final = ("catalog", "database")
"""The fields that `--param` replaces: where the tables are, as for the fork of a project."""

_REQUIRED: Final = ("name", "storage")
_FIELDS: Final = frozenset(
    {*_REQUIRED, "catalog", "database", "schema", "configuration", "libraries"}
)
_TEXTS: Final = ("name", "storage", "catalog", "database", "schema")
_MAGIC: Final = re.compile(r"[*?\[]")
_BELOW: Final = "/**"
_GENERATED: Final = "__pycache__"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSpec:
    """What a spec says.

    Attributes:
        path: The file itself, absolute; paths of definition files are relative to its directory.
        storage: Where `spark-pipelines` keeps checkpoints; here, rows that wait for a Kafka sink.
        catalog: Of all names without one; None for the session's own.
        database: Of all names without one; None for the session's own.
        configuration: Settings of the session, under those that the user gives.
        libraries: The globs of its definition files, each a file or a directory with `/**`.
        lines: The line of each field.
    """

    path: Path
    name: str
    storage: str
    catalog: str | None = None
    database: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.path.parent

    def place(self, name: str) -> SourceLocation:
        """Return the line of a field; the first line for one that is not there."""
        return SourceLocation(str(self.path), self.lines.get(name, 1))


def names_project(path: Path) -> bool:
    """Return whether a path is a project: a YAML file, or a directory with a spec."""
    if is_directory(path):
        return any(is_file(path / name) for name in SPEC_NAMES)
    return path.suffix in SUFFIXES


def find_spec(path: Path) -> Path:
    """Return the spec that a path names: the file itself, or the only spec in a directory."""
    if not is_directory(path):
        if not is_file(path):
            raise ConfigError("FILE", f"{path} does not exist; name the spec of your project")
        return path.absolute()
    found = [path / name for name in SPEC_NAMES if is_file(path / name)]
    if len(found) > 1:
        raise ConfigError("FILE", f"{path} has {' and '.join(SPEC_NAMES)}; name one of them")
    return found[0].absolute()


def read_spec(path: Path, overrides: Mapping[str, str] | None = None) -> ProjectSpec:
    """Read a spec; `overrides` replace its `catalog` and `database`.

    Raises:
        ConfigError: If it is not YAML, or PyYAML is not installed.
        PlanError: With all problems of its fields.
    """
    fields, lines = _parse(path)
    problems = [f"{path}:{lines.get(name, 1)}: {reason}" for name, reason in _problems(fields)]
    if problems:
        name = fields.get("name")
        raise PlanError(name if isinstance(name, str) else path.parent.name, *problems)
    spec = ProjectSpec(
        path=path,
        name=fields["name"],
        storage=fields["storage"],
        catalog=fields.get("catalog"),
        database=fields.get("database", fields.get("schema")),
        configuration=fields.get("configuration") or {},
        libraries=tuple(entry["glob"]["include"] for entry in fields.get("libraries") or ()),
        lines=lines,
    )
    given = overrides or {}
    return replace(
        spec,
        catalog=given.get("catalog", spec.catalog),
        database=given.get("database", spec.database),
    )


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the fields of a spec, and the line of each."""
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        reason = "a declarative project needs the package PyYAML"
        raise ConfigError("FILE", f"{reason}: pip install 'cutwater[declarative]'") from error
    text = path.read_text("utf-8")
    try:
        fields = yaml.safe_load(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError("FILE", f"{path} is no YAML: {reason}") from error
    if not isinstance(fields, dict):
        raise ConfigError("FILE", f"{path} is no spec: it has no fields such as name and storage")
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
    return {str(name): value for name, value in fields.items()}, lines


def _problems(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each field that cannot work, and why."""
    for name in fields:
        if name not in _FIELDS:
            known = ", ".join(sorted(_FIELDS))
            yield name, f"a spec has no field {name}; it has {known}"
    for name in _REQUIRED:
        if name not in fields:
            yield name, f"a spec needs the field {name}"
    for name in _TEXTS:
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            yield name, f"{name} is {value!r}, not a text; put it in quotes"
    yield from (("configuration", reason) for reason in _configuration_problems(fields))
    yield from (("libraries", reason) for reason in _library_problems(fields))


def _configuration_problems(fields: Mapping[str, Any]) -> Iterator[str]:
    settings = fields.get("configuration") or {}
    if not isinstance(settings, dict):
        yield f"configuration is {settings!r}, not settings by name"
        return
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str):
            yield f"configuration has {name}: {value!r}; put name and value in quotes"


def _library_problems(fields: Mapping[str, Any]) -> Iterator[str]:
    entries = fields.get("libraries") or []
    if not isinstance(entries, list):
        yield "libraries is no list of `- glob: {include: …}`"
        return
    for entry in entries:
        glob = entry.get("glob") if isinstance(entry, dict) else None
        pattern = glob.get("include") if isinstance(glob, dict) else None
        if not isinstance(pattern, str):
            yield f"libraries has {entry!r}, which is not of the form `glob: {{include: …}}`"
        elif _MAGIC.search(pattern.removesuffix(_BELOW)):
            yield f"glob {pattern}: a glob is a file, or a directory that ends in {_BELOW}"
        elif Path(pattern).is_absolute():
            yield f"glob {pattern}: a glob is relative to the directory of the spec"


def definition_files(spec: ProjectSpec) -> tuple[Path, ...]:
    """Return the files that the globs of a spec match, each once, in the order of their names.

    Raises:
        PlanError: If a glob matches no file.
    """
    found: dict[Path, None] = {}
    problems = []
    for pattern in spec.libraries:
        files = _matching(spec.root, pattern)
        if not files:
            problems.append(f"{spec.place('libraries')}: glob {pattern} matches no file")
        found.update(dict.fromkeys(files))
    if problems:
        raise PlanError(spec.name, *problems)
    return tuple(found)


def _matching(root: Path, pattern: str) -> list[Path]:
    if not pattern.endswith(_BELOW):
        return [root / pattern] if is_file(root / pattern) else []
    directory = root / pattern.removesuffix(_BELOW)
    return [file for file in files_below(directory) if _GENERATED not in file.parts]

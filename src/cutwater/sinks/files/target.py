"""Directories of files as targets: Parquet, JSON or CSV that any program can read.

Whole files become visible at the commit and never change. `files.table` does the work; the
manifests in `_cutwater/commits` determine which files belong to which version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cutwater.errors import ConfigError, SinkError
from cutwater.ids import SinkId
from cutwater.sinks.base import OpenSink, SinkContext
from cutwater.store.backends.directories import is_directory
from cutwater.store.backends.location import file_path
from cutwater.store.records.targets import StoredTarget

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS: Final = ("parquet", "json", "csv")

_COMPRESSIONS: Final = ("none", "uncompressed", "gzip", "bzip2")
"""The compression formats of text files that every reader supports."""

_NOTHING: Final = "\x01nothing\x01"

_EXACT: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {},
    "json": {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    },
    "csv": {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}
"""Spark's own defaults cut timestamps to milliseconds and texts at their blanks."""


def files(
    path: str,
    format: str = "parquet",  # noqa: A002 - the word of Spark's own writers
    *,
    write: str = "append",
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    keep_past: int = 100,
) -> "FilesTarget":
    """Write a step's rows as files into a directory, exactly once, at every checkpoint.

    Readers that only look at the directory see whole files, never a half-written one. Which files
    belong to which checkpoint is in `_cutwater/commits/<version>.json`, one for each commit. The
    directory belongs to this sink alone.

    Args:
        path: The directory, relative to the working directory or absolute, or a `file:` address.
        format: `parquet`, `json` (one object on a line) or `csv`.
        write: `append`, or `overwrite` for a step in complete mode: each result replaces the
            previous one.
        partition_by: Columns that become directories `column=value`, as Spark names them. An
            empty text becomes null there.
        options: Options of Spark's writer for the format, such as `compression` or `header`.
        keep_past: For how many versions files that were removed, by `overwrite` or by a rewind,
            are kept invisibly, to be restored or read.

    Raises:
        ConfigError: If an option has a value that cannot work.
    """
    if format not in FORMATS:
        raise ConfigError("format", f"{format!r} is not one of {', '.join(FORMATS)}")
    if write not in {"append", "overwrite"}:
        raise ConfigError("write", f"{write!r} is not a way to write; write append or overwrite")
    if isinstance(partition_by, str):
        raise ConfigError("partition_by", f"{partition_by!r} is one name; write a list of names")
    if len({name.lower() for name in partition_by}) < len(partition_by):
        raise ConfigError("partition_by", f"{list(partition_by)} names a column twice")
    if keep_past < 0:
        raise ConfigError("keep_past", f"{keep_past} is less than none")
    directory_of(path)
    chosen = {name: str(value) for name, value in (options or {}).items()}
    compression = {name.lower(): value for name, value in chosen.items()}.get("compression", "none")
    if format != "parquet" and compression.lower() not in _COMPRESSIONS:
        reason = (
            f"{compression!r} is not one of {', '.join(_COMPRESSIONS)}, which {format} can have"
        )
        raise ConfigError("options", reason)
    given = FilesOptions(write, tuple(partition_by), chosen, keep_past)
    return FilesTarget(path, format, given)


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """How files are written into a directory; `files` explains each."""

    write: str = "append"
    partition_by: tuple[str, ...] = ()
    writer: Mapping[str, str] = field(default_factory=dict)
    keep_past: int = 100


@dataclass(frozen=True, slots=True)
class FilesTarget:
    """A directory of files; made by `files`, fills `Sink`."""

    uri: str
    format: str = "parquet"
    options: FilesOptions = field(default_factory=FilesOptions)

    @property
    def accepts(self) -> frozenset[str]:
        """Rows that are final, or whole results."""
        return frozenset({"complete" if self.options.write == "overwrite" else "append"})

    @property
    def write(self) -> str:
        return self.options.write

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        """Name the directory as the user wrote it; a local path holds no secret."""
        return self.uri

    def open(self, context: SinkContext) -> OpenSink:
        """Create the directory if necessary; refuse one of another sink or program."""
        from cutwater.sinks.files.table import OpenFiles  # noqa: PLC0415 - needs Spark
        from cutwater.sinks.staging.formats import Form  # noqa: PLC0415

        given = self.options
        settings = {**_EXACT[self.format], **given.writer}
        form = Form(self.format, settings, given.partition_by, given.write == "overwrite")
        return OpenFiles(directory_of(self.uri).absolute(), form, context, given.keep_past)

    def check_rows(self, sink: SinkId, rows: "StructType") -> str | None:  # noqa: ARG002
        from cutwater.sinks.columns import find_unheld  # noqa: PLC0415 - needs Spark's types

        return find_unheld(rows, self.format)

    def stored(self) -> StoredTarget:
        """Its real path, with links resolved."""
        given = self.options
        remembered = {
            "write": (given.write,),
            "partition_by": given.partition_by,
            "keep_past": (str(given.keep_past),),
            "writer": tuple(f"{name}={value}" for name, value in sorted(given.writer.items())),
        }
        return StoredTarget(self.format, str(directory_of(self.uri).resolve()), remembered)


def remembered_files(target: StoredTarget) -> FilesTarget:
    options = target.options
    pairs = (option.partition("=") for option in options.get("writer", ()))
    given = FilesOptions(
        write=options.get("write", ("append",))[0],
        partition_by=tuple(options.get("partition_by", ())),
        writer={name: value for name, _, value in pairs},
        keep_past=int(options.get("keep_past", ("100",))[0]),
    )
    return FilesTarget(target.uri, target.format, given)


def reopen_files(target: StoredTarget, context: SinkContext) -> OpenSink:
    """Open a directory that a store has recorded; SinkError if it is gone."""
    if not is_directory(Path(target.uri)):
        raise SinkError(context.sink, f"there is no directory {target.uri} any more")
    return remembered_files(target).open(context)


def reading_options(target: FilesTarget) -> Mapping[str, str]:
    """Return the options with which Spark reads back exactly what was written."""
    options = {**_EXACT[target.format], **target.options.writer}
    if target.format == "csv":
        # A null is written as nothing and an empty text as two quotes. Spark reads both as the
        # same, unless null has a text of its own.
        options = {"nullValue": _NOTHING, "multiLine": "true", **options}
    return options


def directory_of(uri: str) -> Path:
    """Return the directory that a path or a `file:` address names."""
    path = file_path(uri, "path")
    if path is None:
        scheme, separator, _ = uri.partition("://")
        if separator and ":" not in scheme:
            # A commit needs an atomic rename, and no object store has one.
            reason = f"{scheme}: files go to file systems only; sinks.delta writes to object stores"
            raise ConfigError("path", f"{reason}, or give a path")
        path = uri
    if not path:
        raise ConfigError("path", "an empty path is no directory")
    return Path(path)

"""Files that a step reads and a sink of the same pipeline writes: a way around the channels (F40).

What a step finds in such a table depends on when it reads; no checkpoint contains it, and a restore
does not roll it back. So such a read is refused while the pipeline is planned, if Spark's analysed
plan names what is read: files by path, and catalog tables that are files. The table of another
pipeline is an outside table and may be read.
"""

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from cutwater.errors import CutwaterError
from cutwater.pipeline.nodes import Node
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.sinks.base import Sink
from cutwater.sinks.catalog_table import TableTarget, files_of
from cutwater.sinks.files.target import FORMATS, FilesTarget
from cutwater.store.backends.location import Location
from cutwater.store.records.targets import SAME_AS

_LOCAL: Final = "file"
_S3: Final = "s3"


class Address(NamedTuple):
    """Where files are, in a normalized form that can be compared.

    Attributes:
        kind: The scheme, one for all names of S3; `file` for this machine.
        host: The bucket with the server it is on, or the name server; empty for this machine.
        parts: The path; on this machine with all links resolved.
    """

    kind: str
    host: str
    parts: tuple[str, ...]

    def is_in(self, directory: "Address") -> bool:
        """Return whether this is a directory, or below it; a part may be a pattern, as Spark's."""
        return (
            (self.kind, self.host) == (directory.kind, directory.host)
            and len(self.parts) >= len(directory.parts)
            and all(
                there == here or fnmatchcase(there, here)
                for there, here in zip(directory.parts, self.parts, strict=False)
            )
        )


def address_of(text: str, server: str = "") -> Address:
    """Read a path as Spark writes it: nothing in it is escaped.

    On S3 the server counts: two servers may have buckets of the same name.
    """
    scheme, separator, rest = text.partition(":")
    if not separator or "/" in scheme:
        return Address(_LOCAL, "", _parts(os.path.realpath(text)))
    kind = SAME_AS.get(scheme.lower(), scheme.lower())
    host, path = "", rest
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
    if kind == _LOCAL:
        return Address(_LOCAL, "", _parts(os.path.realpath(f"/{path}")))
    return Address(kind, f"{host} at {server}" if kind == _S3 else host, _parts(path))


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


class SelfReadCheck:
    """Checks whether a path that a step reads is written by a sink of the same pipeline."""

    def __init__(
        self,
        plan: PhysicalPlan,
        setting: Callable[[str], str | None],
        files_of_table: Callable[[str], FilesTarget],
    ) -> None:
        """Resolve the address of every target; one that fails is reported when it is opened.

        Args:
            setting: Returns a Hadoop setting, by which readers find file systems.
            files_of_table: Returns where the catalog has a table.
        """
        self._setting = setting
        nodes = [step.sink for step in plan.steps if step.sink is not None]
        self._at = [
            (address, node)
            for node in nodes
            for address in _addresses_written_by(node, files_of_table)
        ]

    @classmethod
    def of(cls, plan: PhysicalPlan, spark: SparkSession) -> "SelfReadCheck":
        settings = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        return cls(plan, settings.get, partial(files_of, spark))

    def writer_of(self, read: str) -> Node | None:
        """Return the sink that writes what is read from a path; None if no sink does."""
        found = address_of(self._qualify(read), self._server(read))
        return next((node for address, node in self._at if found.is_in(address)), None)

    def _qualify(self, read: str) -> str:
        """Add the default file system to a path that names none."""
        default = self._setting("fs.defaultFS") or "file:///"
        plain = ":" not in read.partition("/")[0]
        return f"{default.rstrip('/')}{read}" if plain and not default.startswith("file:") else read

    def _server(self, read: str) -> str:
        bucket = read.partition("://")[2].partition("/")[0]
        own = self._setting(f"fs.s3a.bucket.{bucket}.endpoint")
        return _server_of(own or self._setting("fs.s3a.endpoint") or "")


def _addresses_written_by(
    node: Node, files_of_table: Callable[[str], FilesTarget]
) -> Iterator[Address]:
    target: object = node.target
    if not isinstance(target, Sink):
        return
    try:
        if isinstance(target, TableTarget):
            target = files_of_table(target.name)
        stored = target.stored()
        if stored.format not in {"delta", *FORMATS}:
            return
        place = Location.of(stored.uri)
    except CutwaterError:
        return
    if place.directory is not None:
        yield Address(_LOCAL, "", _parts(os.path.realpath(place.directory)))
    elif place.kind == _S3:
        server = _server_of(
            next((option for option in place.options.values() if "://" in option), "")
        )
        yield Address(_S3, f"{place.bucket} at {server}", _parts(place.path))


def _server_of(endpoint: str) -> str:
    """Return a server's name; all the names that Amazon's has are one."""
    name = (endpoint.partition("://")[2] or endpoint).strip("/").lower()
    return "" if name.endswith("amazonaws.com") else name

"""An archive of the classes that Spark loads, which makes every later start of a JVM shorter.

Spark loads and verifies about twenty thousand classes before its first batch. Java can keep them in
a file that later JVMs map into memory (class data sharing). `cutwater warm-up` makes the file for
one Java and one Spark, in the user's cache; the JVM of our own session uses it if it is there. A
JVM that finds the file of another Java or other jars ignores it, so the file never changes what
runs.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from cutwater.errors import SessionError
from cutwater.spark.session.java import Java, cache_directories, make_private
from cutwater.store.backends.directories import is_file, list_directory, status

_USE: Final = "-XX:SharedArchiveFile="
_MAKE: Final = "-XX:ArchiveClassesAtExit="
_QUIET: Final = "-Xlog:cds*=off,class+path*=off"
_CHOSEN: Final = (_USE, _MAKE, "-Xshare:")
_END_S: Final = 180.0
"""How long a JVM may take to write its classes when it ends."""


def find_archive(java: Java) -> Path | None:
    """Return the archive for a Java and the installed Spark; None if there is none."""
    name = _name(java)
    return next((path for cache in cache_directories() if is_file(path := cache / name)), None)


def with_archive(options: str, java: Java) -> str:
    """Add the archive, if there is one, to Java's options, unless they say something about it."""
    archive = None if any(word in options for word in _CHOSEN) else find_archive(java)
    if archive is None or any(letter.isspace() or letter in "\"'\\" for letter in str(archive)):
        return options
    return f"{_USE}{archive} {_QUIET} {options}".strip()


class ArchiveInProgress:
    """An archive that a JVM writes when it ends; use it once, in this order.

    Raises `SessionError` if the archive cannot be made, with the reason.
    """

    def __init__(self, java: Java) -> None:
        reasons: list[str] = []
        for cache in cache_directories():
            try:
                make_private(cache)
                self._directory = tempfile.TemporaryDirectory(prefix=".classes-", dir=cache)
            except OSError as error:
                reasons.append(f"{cache}: {error.strerror or error}")
                continue
            self.path = cache / _name(java)
            self._unfinished = Path(self._directory.name) / "classes.jsa"
            return
        raise SessionError(f"there is no directory for an archive ({'; '.join(reasons)}).")

    @property
    def options(self) -> str:
        """The Java options of the JVM whose classes are kept."""
        return f"{_MAKE}{self._unfinished} {_QUIET}"

    def finish(self) -> Path:
        """End the JVM of this process, and wait until the archive is complete."""
        with self._directory:
            _end_jvm()
            if not is_file(self._unfinished):
                message = "this Java wrote none; it may lack the archive of its own classes"
                raise SessionError(f"there is no archive of classes: {message}.")
            self._unfinished.replace(self.path)
        return self.path


def _end_jvm() -> None:
    """End the JVM that our own session has started, and wait for it."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - pyspark has no other way to ask
    process: Popen[bytes] = gateway.proc
    gateway.shutdown()
    assert process.stdin is not None
    # The JVM ends when its standard input does.
    process.stdin.close()
    try:
        process.wait(_END_S)
    except TimeoutExpired:
        process.kill()
        process.wait()
        raise SessionError(f"the JVM did not end within {_END_S:.0f} s.") from None


def _name(java: Java) -> str:
    """Return the name of the archive, which differs for every Java and every set of jars."""
    places = [java.home / "release", java.home / "lib" / "modules"]
    places += list_directory(Path(_find_spark_home()) / "jars")
    facts = [str(java.home), str(java.version), *map(_facts, places)]
    return f"classes-{hashlib.sha256(os.linesep.join(facts).encode()).hexdigest()[:16]}.jsa"


def _facts(path: Path) -> str:
    found = status(path)
    return f"{path} {found.st_size} {found.st_mtime_ns}" if found is not None else f"{path} -"

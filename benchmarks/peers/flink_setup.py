"""Flink, made ready on demand: an environment of its own, its Parquet format, our file order.

PyFlink needs another Python and other versions than this project, so it is installed into
`.venv-flink` at the root of the repository, which git ignores; its Parquet format is kept in the
user's cache. Parquet's own classes need Hadoop's, which are taken from pyspark. Where something is
missing (a Python that Flink supports, Maven, a Java compiler, the network), `Unavailable` says so,
and the race runs without Flink.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
from benchmarks.measuring import ROOT

from cutwater.spark.session.java import use_java

VERSION: Final = "2.3.0"
HOME: Final = ROOT / ".venv-flink"
CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cutwater" / "race"
)
PYTHONS: Final = ("3.12", "3.11", "3.10", "3.9")
"""Versions of Python that this Flink has packages for, the newest first."""
_FORMAT: Final = f"org.apache.flink:flink-sql-parquet:{VERSION}"
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"
_SOURCE: Final = Path(__file__).parent / "java" / "FilesInOrder.java"
_SERVICES: Final = Path("META-INF", "services", "org.apache.flink.table.factories.Factory")


class Unavailable(Exception):
    """Flink cannot be run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Flink:
    """An installed Flink: its Python, and what it must find in its environment."""

    python: Path
    environment: dict[str, str]


def prepare() -> Flink:
    """Install what is missing, and return the Flink.

    Raises:
        Unavailable: If something cannot be installed.
    """
    use_java()
    python = _environment()
    parquet = CACHE / f"flink-sql-parquet-{VERSION}.jar"
    if not parquet.exists():
        maven = _program("mvn", "Maven fetches Flink's Parquet format")
        _run([maven, "-q", "-B", _COPY, f"-Dartifact={_FORMAT}", f"-DoutputDirectory={CACHE}"])
    classes = _compile(python)
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    if not hadoop:
        raise Unavailable("pyspark has no Hadoop client, which Parquet needs")
    return Flink(
        python,
        {
            **os.environ,
            "HADOOP_CLASSPATH": os.pathsep.join(map(str, (classes, parquet, *hadoop))),
            "PYTHONPATH": str(ROOT),
            # As much as Spark's driver has in every session of this race.
            "JDK_JAVA_OPTIONS": "-Xmx2g",
        },
    )


def _environment() -> Path:
    """Return the Python that has Flink; install it first if there is none."""
    python, stamp = HOME / "bin" / "python", HOME / f".installed-{VERSION}"
    if stamp.exists():
        return python
    print(f"Installing Flink {VERSION} into {HOME.name}; this takes some minutes", flush=True)
    shutil.rmtree(HOME, ignore_errors=True)
    _run([_python(), "-m", "venv", str(HOME)])
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, f"apache-flink=={VERSION}"])
    stamp.touch()
    return python


def _python() -> str:
    """Return a Python that this Flink supports: on the path, or one of pyenv's."""
    for version in PYTHONS:
        found = shutil.which(f"python{version}")
        pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        # A shim of pyenv's is there for versions that are not chosen, too, and then fails.
        for candidate in [*([found] if found else []), *map(str, pyenv)]:
            if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode:
                continue
            return candidate
    raise Unavailable(f"Flink {VERSION} needs Python {PYTHONS[-1]} to {PYTHONS[0]}")


def _compile(python: Path) -> Path:
    """Compile our connector, and return the directory of its classes."""
    classes = HOME / "classes"
    if classes.exists() and classes.stat().st_mtime > _SOURCE.stat().st_mtime:
        return classes
    own = Path(os.environ.get("JAVA_HOME", ""), "bin", "javac")
    compiler = str(own) if own.exists() else _program("javac", "Flink's file order needs a JDK")
    found = _run([str(python), "-c", "import pyflink; print(pyflink.__path__[0])"]).strip()
    shutil.rmtree(classes, ignore_errors=True)
    (classes / _SERVICES).parent.mkdir(parents=True)
    (classes / _SERVICES).write_text(f"{_SOURCE.stem}\n")
    # Flink 2 runs on Java 11 and later.
    words = [compiler, "--release", "11", "-cp", f"{found}/lib/*", "-d", str(classes)]
    _run([*words, str(_SOURCE)])
    os.utime(classes)
    return classes


def _program(name: str, why: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no {name} on the path ({why})")
    return found


def _run(words: list[str]) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{Path(words[0]).name} failed: {' '.join(last) or ended.returncode}")
    return ended.stdout

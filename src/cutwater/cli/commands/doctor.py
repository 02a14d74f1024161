"""`cutwater doctor`: check this machine, the store and scratch, and report problems.

Each check is a function that returns a finding; none of them starts Spark, and all remove their
files. A *note* is worth knowing, a *wrong* makes the exit code 1, and both say what to do. With
`--self-test`, the command then runs a small pipeline on the user's own Spark (`self_test`).
"""

import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from cutwater._version import __version__
from cutwater.cli.commands.self_test import Phase, SelfTest
from cutwater.cli.load import parse_pairs
from cutwater.cli.options import DEFAULT_STORE, Conf, Debug, Master, OutputForm, store_location
from cutwater.cli.output import FAILED, SUCCESS, Output, bytes_text, duration_text, say, say_json
from cutwater.cli.process import FILES_COMFORTABLE, FILES_MIN, open_files_max
from cutwater.config.settings import MASTER_DEFAULT
from cutwater.errors import CutwaterError, SessionError
from cutwater.runtime.scratch import private_path, private_problem
from cutwater.spark.session.java import Java, find_java
from cutwater.spark.session.requirements import connect_variables
from cutwater.spark.versions import PYSPARK, find_version, missing_features
from cutwater.store.backends.directories import directories_below, exists
from cutwater.store.backends.location import Location, probe

HELP: Final = """Check this machine and report problems.

Shows the versions of Python, Spark and Java, memory, cores and open files, and tests the store, the
scratch directory and the directory for Spark's own files. With --self-test, it also runs a small
stateful pipeline on your Spark, ends it between two checkpoints, restores it and compares every
row. Removes all its files. Exit code 0 if all is well, 1 if something is wrong.

\b
  cutwater doctor
  cutwater doctor --self-test
  cutwater doctor --self-test --master spark://host:7077 --scratch /shared/fast
"""

_GIB: Final = 1024**3
_DRIVER_BYTES: Final = 2 * _GIB
_SCRATCH_BYTES: Final = _GIB
_LOCAL_DIRECTORIES: Final = ("SPARK_LOCAL_DIRS", "spark.local.dir")
"""The names of the setting for the directories of Spark's own files; the first wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorArguments:
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store to test.", show_default=DEFAULT_STORE),
    ] = None
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="The scratch directory to test.",
            show_default="a temporary directory",
        ),
    ] = None
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Run, end and restore a small pipeline on Spark.")
    ] = False
    master: Master = MASTER_DEFAULT
    conf: Conf = field(default_factory=list)
    output: OutputForm = Output.TEXT
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check; the advice is empty if nothing is wrong."""

    name: str
    status: Literal["ok", "note", "wrong"]
    found: str
    advice: str = ""


def doctor_command(arguments: DoctorArguments) -> int:
    """Run all checks and show the findings; return 1 if something is wrong."""
    conf = parse_pairs("--conf", arguments.conf)
    findings = [check(arguments) for check in CHECKS]
    wrong = sum(finding.status == "wrong" for finding in findings)
    as_json = arguments.output is Output.JSON
    if not as_json:
        _show(findings)
        say(f"{wrong or 'Nothing'} wrong.")
    phases: tuple[Phase, ...] = ()
    if arguments.self_test and not wrong:
        test = SelfTest(
            master=arguments.master,
            conf=conf,
            scratch=_nearest(arguments.scratch or Path(tempfile.gettempdir())),
            report=_show_nothing if as_json else _show_phase,
        )
        phases = test.run()
        wrong = sum(not phase.ok for phase in phases)
    if as_json:
        shown: dict[str, object] = {
            "ok": not wrong,
            "checks": [asdict(finding) for finding in findings],
        }
        if arguments.self_test:
            shown["self_test"] = _self_test_json(phases)
        say_json(shown, indent=2)
    elif arguments.self_test:
        say(_verdict(phases))
    return FAILED if wrong else SUCCESS


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        say(f"{finding.status:<5}  {finding.name:<{width}}  {finding.found}")
        if finding.advice:
            say(f"{'':<{width + 7}}  {finding.advice}")


def _show_phase(phase: Phase) -> None:
    status = "ok" if phase.ok else "wrong"
    say(f"{status:<5}  {phase.name:<20} {duration_text(phase.duration_ms):>9}  {phase.found}")


def _show_nothing(_: Phase) -> None:
    pass


def _verdict(phases: tuple[Phase, ...]) -> str:
    """Describe the result of a self-test; it was not run if there are no phases."""
    if not phases:
        return "The self-test was not run: fix the problems first."
    last = phases[-1]
    return "Supported." if last.ok else f"Not supported: {last.name}: {last.found}"


def _self_test_json(phases: tuple[Phase, ...]) -> dict[str, object] | None:
    if not phases:
        return None
    last = phases[-1]
    return {
        "supported": last.ok,
        "reason": None if last.ok else f"{last.name}: {last.found}",
        "phases": [asdict(phase) for phase in phases],
    }


def _check_python(_: DoctorArguments) -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _check_cutwater(_: DoctorArguments) -> Finding:
    return Finding("Cutwater", "ok", __version__)


def _check_spark(_: DoctorArguments) -> Finding:
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding("Spark", "wrong", "not installed", "Run `pip install cutwater` again.")
    supported = find_version(found)
    if supported is None:
        advice = f"Install a version that works: pip install 'pyspark{PYSPARK}'."
        return Finding("Spark", "wrong", found, advice)
    notes = []
    elsewhere = os.environ.get("SPARK_HOME")
    if elsewhere:
        notes.append(
            f"SPARK_HOME is set, so the Spark in {elsewhere} is used; it must be {found} too."
        )
    missing = missing_features(supported)
    if missing:
        listed = "; ".join(f"{feature.name} ({feature.since_name})" for feature in missing)
        notes.append(f"Pipelines run, without what needs a newer Spark: {listed}.")
    return Finding("Spark", "note" if notes else "ok", found, " ".join(notes))


def _check_remote(_: DoctorArguments) -> Finding:
    remote = connect_variables()
    if not remote:
        return Finding("Spark Connect", "ok", "not requested")
    advice = f"A pipeline needs a classic session: unset {' and '.join(remote)}."
    return Finding("Spark Connect", "wrong", "requested", advice)


def _check_java(_: DoctorArguments) -> Finding:
    try:
        java = find_java()
    except SessionError as error:
        return Finding("Java", "wrong", "none that Spark can use", error.message)
    found = f"{java.version} at {java.home} (from {java.origin})"
    return Finding("Java", "ok", f"{found}, {_describe_archive(java)}")


def _describe_archive(java: Java) -> str:
    try:
        # It needs pyspark, which another check reports as missing.
        from cutwater.spark.session.class_archive import find_archive  # noqa: PLC0415
    except ImportError:
        return "no archive of classes"
    if find_archive(java) is None:
        return "no archive of classes (`cutwater warm-up` makes one, and starts become shorter)"
    return "starts with an archive of classes"


def _check_memory(_: DoctorArguments) -> Finding:
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = bytes_text(total_bytes)
    if total_bytes < _DRIVER_BYTES + _GIB:
        advice = "Spark takes 2 GB; give `cutwater run` --conf spark.driver.memory=1g for less."
        return Finding("Memory", "note", found, advice)
    return Finding("Memory", "ok", found)


def _check_cores(_: DoctorArguments) -> Finding:
    cores = os.cpu_count() or 1
    if cores < 2:
        advice = "Steps take turns on one core; that works, slowly."
        return Finding("Cores", "note", str(cores), advice)
    return Finding("Cores", "ok", str(cores))


def _check_store(arguments: DoctorArguments) -> Finding:
    try:
        location = store_location(arguments.store or DEFAULT_STORE)
        path = location.directory
        if path is not None:
            return _check_directory(path.absolute(), arguments)
        backend = location.backend()
        probe(backend)
    except CutwaterError as error:
        return Finding("Store", "wrong", error.message, "Choose another one with --store.")
    return Finding("Store", "ok", f"{backend.url} keeps what it is given")


def _check_directory(path: Path, arguments: DoctorArguments) -> Finding:
    if arguments.store is None and not exists(path):
        return Finding("Store", "ok", f"{path} is not there yet; the first run makes it")
    is_new = not exists(path)
    backend = Location.of(path).backend()
    try:
        probe(backend)
    finally:
        if is_new:
            _remove_empty(path)
    return Finding("Store", "ok", f"{path} keeps what it is given")


def _remove_empty(path: Path) -> None:
    """Remove a store that the check created, unless it is in use by now."""
    with suppress(OSError):
        for directory in reversed(directories_below(path)):
            directory.rmdir()
        path.rmdir()


def _check_files(_: DoctorArguments) -> Finding:
    count = open_files_max()
    if count == resource.RLIM_INFINITY:
        return Finding("Open files", "ok", "as many as there is room for")
    found = f"at most {count:,}"
    advice = f"Raise the hard limit to {FILES_COMFORTABLE:,} or more (ulimit -Hn, LimitNOFILE=)."
    if count < FILES_MIN:
        return Finding("Open files", "wrong", found, advice)
    if count < FILES_COMFORTABLE:
        return Finding("Open files", "note", found, advice)
    return Finding("Open files", "ok", found)


def _check_scratch(arguments: DoctorArguments) -> Finding:
    advice = "Choose another one with --scratch."
    if arguments.scratch is None and private_problem():
        return Finding("Scratch", "wrong", private_problem(), advice)
    return _check_room("Scratch", arguments.scratch or private_path("scratch"), advice)


def _check_spark_files(arguments: DoctorArguments) -> Finding:
    """Check the directories of Spark's shuffle files, as `embedded_session` chooses them."""
    name = "Spark's files"
    conf = parse_pairs("--conf", arguments.conf)
    setting = next(
        (name for name in _LOCAL_DIRECTORIES if os.environ.get(name) or conf.get(name)), ""
    )
    if not setting:
        advice = "Set TMPDIR to a directory of your own."
        if private_problem():
            return Finding(name, "wrong", private_problem(), advice)
        return _check_room(name, private_path("spark"), advice)
    named = os.environ.get(setting) or conf[setting]
    directories = [Path(text.strip()) for text in named.split(",") if text.strip()]
    advice = f"Change {setting}, or leave it out."
    rooms = [_check_room(name, directory, advice) for directory in directories]
    worst = next((finding for finding in rooms if finding.status != "ok"), None)
    if worst is not None or not rooms:
        return worst or Finding(name, "wrong", f"{setting} names no directory", advice)
    readable = [
        directory for directory in directories if _nearest(directory).stat().st_mode & 0o055
    ]
    if readable:
        listed = ", ".join(map(str, readable))
        hint = f"chmod 700 it, or leave {setting} out"
        advice = f"Other users can read what Spark keeps in {listed}: {hint}."
        return Finding(name, "note", named, advice)
    return Finding(name, "ok", "; ".join(finding.found for finding in rooms))


def _check_room(name: str, path: Path, advice: str) -> Finding:
    """Check a directory or its nearest existing parent: writable, hard links, free space."""
    nearest = _nearest(path)
    try:
        with tempfile.TemporaryDirectory(prefix="cutwater-doctor-", dir=nearest) as made:
            (Path(made) / "file").write_bytes(b"x")
            (Path(made) / "link").hardlink_to(Path(made) / "file")
    except OSError as error:
        needs = f"It must be writable and have hard links. {advice}"
        return Finding(name, "wrong", f"{path}: {error.strerror or error}", needs)
    free_bytes = shutil.disk_usage(nearest).free
    found = f"{path}, {bytes_text(free_bytes)} free, hard links work"
    if free_bytes < _SCRATCH_BYTES:
        return Finding(name, "wrong", found, f"Less than 1 GB is free; make room. {advice}")
    return Finding(name, "ok", found)


def _nearest(path: Path) -> Path:
    return next(
        directory for directory in (path.absolute(), *path.absolute().parents) if exists(directory)
    )


CHECKS: Final[tuple[Callable[[DoctorArguments], Finding], ...]] = (
    _check_python,
    _check_cutwater,
    _check_spark,
    _check_remote,
    _check_java,
    _check_memory,
    _check_cores,
    _check_files,
    _check_store,
    _check_scratch,
    _check_spark_files,
)

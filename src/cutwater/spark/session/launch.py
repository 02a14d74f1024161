"""Starts the JVM of our own session, or reports why it did not start, with the JVM's own output.

pyspark would put every setting on a command line that all users of the machine can read, and could
not end a JVM that is still starting. So the JVM is started here. Its settings and Java options are
in files that only this user can read and that are deleted when it runs. Its process is ended if the
start is abandoned. Its output on stderr is kept until the start succeeds or fails. pyspark then
connects to it as to an existing JVM.
"""

import os
import re
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from cutwater.errors import SessionError
from cutwater.printable import printable
from cutwater.store.backends.directories import is_file

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_DEFAULT_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES: Final = "--properties-file"
_LOOK_S: Final = 0.05
_QUIET_S: Final = 10.0
"""How long the output of a starting JVM is held back before it is forwarded."""
_LAST_WORDS: Final = 20
_HELD_MAX: Final = 1_000
_ENDING_S: Final = 5.0
# What the JVM itself prints about Spark's own option, before any logging; no setting stops it.
_HARMLESS: Final = b"WARNING: Using incubator modules"


def start_jvm(settings: Mapping[str, str]) -> Any:  # noqa: ANN401 - py4j has no types
    """Start a JVM with Spark's settings, in a session of its own; return pyspark's gateway to it.

    A JVM that started this process (`spark-submit`) is used as it is.

    Raises:
        SessionError: If it ended before it was ready, with the last lines that it wrote; or if
            its arguments cannot be read.
    """
    if _PORT in os.environ:
        return launch_gateway()  # type: ignore[no-untyped-call]
    with TemporaryDirectory(prefix="cutwater-jvm-") as made:
        directory = Path(made)
        ready = directory / "ready"
        with _start_process(_command(settings, directory), ready) as (process, complaints):
            _wait(process, ready, complaints, settings.get("spark.master", "its master"))
            with ready.open("rb") as file:
                port = read_int(file)  # type: ignore[no-untyped-call]
                secret = UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]
            gateway = _connect(port, secret)
    gateway.proc = process
    complaints.release()
    return gateway


# -- settings


def _command(settings: Mapping[str, str], directory: Path) -> list[str]:
    """Write the settings to files and return the command that reads them from there."""
    arguments, theirs, loads_defaults = _split(_words(os.environ.get(_ARGUMENTS, ""), _ARGUMENTS))
    options = " ".join(
        settings[option] for option in (_DEFAULT_JAVA_OPTIONS, JAVA_OPTIONS) if settings.get(option)
    )
    (directory / "options").write_text(_argument_file(_words(options, JAVA_OPTIONS)))
    hidden = {**settings, JAVA_OPTIONS: shlex.quote(f"@{directory / 'options'}")}
    hidden.pop(_DEFAULT_JAVA_OPTIONS, None)
    # Of two values in one file the last counts: ours come after those of the user's own file.
    text = "".join(_read(Path(file)) + "\n\n" for file in theirs)
    text += "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in hidden.items())
    properties = directory / "properties"
    properties.touch(mode=0o600)
    properties.write_text(text, encoding="utf-8")
    submit = str(Path(_find_spark_home()) / "bin" / "spark-submit")
    defaults = ["--load-spark-defaults"] if loads_defaults else []
    rest = arguments or ["pyspark-shell"]
    return [submit, _PROPERTIES, str(properties), *defaults, *rest]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Take the properties file out of the user's arguments for `spark-submit`.

    Returns the other arguments, the file if there is one, and whether Spark's own file of defaults
    is read as well: as `spark-submit` does it, unless a file was named.
    """
    rest: list[str] = []
    files: list[str] = []
    words = iter(arguments)
    for word in words:
        name, has_value, value = word.partition("=")
        if name == _PROPERTIES:
            # As in spark-submit, of several only the last counts.
            files = [value if has_value else next(words, "")]
        else:
            rest.append(word)
    return rest, files, not files


def _words(text: str, name: str) -> list[str]:
    """Split a setting into words, as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SessionError(f"{name} cannot be read: {error}.") from error


def _read(file: Path) -> str:
    """Return the properties in a file of the user's."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "its text is not UTF-8"
    raise SessionError(f"{_PROPERTIES} in {_ARGUMENTS}: {file} cannot be read: {reason}.")


def _escape(text: str) -> str:
    """Write a key or a value as `java.util.Properties` reads it back."""
    controls = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return re.sub(r"[\\ \t\n\r\f=:#!]", lambda found: controls.get(found[0], f"\\{found[0]}"), text)


def _argument_file(words: Sequence[str]) -> str:
    """Write Java's options as its launcher reads them from a file."""
    quoted = (word.replace("\\", "\\\\").replace('"', '\\"') for word in words)
    return "".join(f'"{word}"\n' for word in quoted)


# -- the process


@contextmanager
def _start_process(
    command: Sequence[str], ready: Path
) -> "Iterator[tuple[Popen[bytes], _Complaints]]":
    """Start the process; if the start is abandoned, kill the whole process group."""
    environment = {
        **os.environ,
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(ready),
    }
    # It ends when its stdin does, so that it never outlives this process; a session of its own
    # keeps the terminal's signals away, so that a stop can still take its checkpoint.
    process = Popen(command, stdin=PIPE, stderr=PIPE, env=environment, start_new_session=True)
    assert process.stderr is not None
    try:
        yield process, _Complaints(process.stderr)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _wait(process: "Popen[bytes]", ready: Path, complaints: "_Complaints", master: str) -> None:
    began_s = time.monotonic()
    while not is_file(ready):
        if process.poll() is not None:
            message = f"the JVM ended with exit code {process.returncode}{complaints.last_words()}"
            raise SessionError(f"Spark did not start on {master}: {message}.")
        if time.monotonic() - began_s > _QUIET_S:
            complaints.release()
        time.sleep(_LOOK_S)


def _connect(port: int, secret: str) -> Any:  # noqa: ANN401 - py4j has no types
    try:
        os.environ |= {_PORT: str(port), _SECRET: secret}
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[_PORT], os.environ[_SECRET]


class _Complaints:
    """The output of the JVM on stderr: kept while it starts, then forwarded."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines
        self._last: deque[bytes] = deque(maxlen=_LAST_WORDS)
        self._held: deque[bytes] | None = deque(maxlen=_HELD_MAX)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="cutwater-jvm-stderr", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Forward what was kept, and all later output."""
        with self._lock:
            held, self._held = self._held, None
            for line in held or ():
                _pass_on(line)

    def last_words(self) -> str:
        """Return the last lines of a JVM that has ended, after a colon; empty if there are none."""
        self._thread.join(_ENDING_S)
        said = [line.decode(errors="replace").strip() for line in self._last]
        # The frames of a stack trace do not help the user to correct the error.
        text = "; ".join(line.rstrip(".") for line in said if line and not line.startswith("at "))
        return f": {text}" if text else ""

    def _run(self) -> None:
        with self._lines:
            for line in self._lines:
                if line.startswith(_HARMLESS):
                    continue
                self._last.append(line)
                with self._lock:
                    if self._held is not None:
                        self._held.append(line)
                    else:
                        _pass_on(line)


def _pass_on(line: bytes) -> None:
    """Write a line of the JVM to stderr, or to the live view that has replaced `sys.stderr`."""
    text = printable(line.decode(errors="replace"))
    # A closed stderr, as at the end of a process, is no reason to stop emptying the pipe.
    with suppress(OSError, ValueError):
        if sys.stderr is sys.__stderr__:
            # Unbuffered: a thread that dies inside a buffer's lock can stop the exit.
            os.write(2, text.encode())
        else:
            sys.stderr.write(text)

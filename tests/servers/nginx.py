"""A real nginx on loopback, with TLS by a certificate of its own, as docs/how-to sets it up.

The server is the one of the document, with this machine's ports and files in it: what people copy
is what is tested. `make proxy` installs nginx where it is missing.
"""

import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.servers.ports import free_port

HOST = "pipelines.example"
"""The name of the document."""

_DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "serve-behind-a-proxy.md"
_DEADLINE_S = 60.0
_AROUND = """
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {server}
}}
"""


@dataclass(frozen=True)
class Proxy:
    """The proxy as others see it.

    Attributes:
        port: Where it listens on 127.0.0.1.
        certificate: What it shows, and is to be trusted.
    """

    port: int
    certificate: Path

    @property
    def url(self) -> str:
        """The address of what it forwards to."""
        return f"https://{HOST}:{self.port}/orders/"

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))


def program(name: str, how: str) -> str:
    """Return where a program is; the test is left out where it is missing, and says so."""
    places = "/usr/sbin:/usr/local/sbin"
    found = shutil.which(name) or shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is missing: {how}")
    return found


@contextmanager
def proxy(directory: Path, upstream: int, port: int | None = None) -> Iterator[Proxy]:
    """Run nginx in front of a port of this machine."""
    nginx = program("nginx", "apt-get install nginx-light, or `make proxy` as root")
    made = Proxy(port or free_port(), _certificate(directory))
    configuration = directory / "nginx.conf"
    configuration.write_text(_AROUND.format(directory=directory, server=_server(made, upstream)))
    words = [nginx, "-p", f"{directory}", "-c", f"{configuration}", "-e", f"{directory}/error.log"]
    process = subprocess.Popen([*words, "-g", "daemon off;"], stderr=subprocess.PIPE, text=True)
    try:
        _wait(process, made.port)
        yield made
    finally:
        process.terminate()
        process.communicate(timeout=_DEADLINE_S)


def _server(made: Proxy, upstream: int) -> str:
    found = re.search(r"```nginx\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{made.port} ssl",
        "/etc/nginx/pipelines.pem": str(made.certificate),
        "/etc/nginx/pipelines.key": str(made.certificate.with_suffix(".key")),
        "127.0.0.1:4080": f"127.0.0.1:{upstream}",
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def _certificate(directory: Path) -> Path:
    openssl = program("openssl", "apt-get install openssl")
    made = directory / "proxy.pem"
    words = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-nodes", "-keyout", f"{made.with_suffix('.key')}", "-out", f"{made}", "-days", "2"]
    names = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST},IP:127.0.0.1"]
    subprocess.run([*words, *files, *names], check=True, capture_output=True)
    return made


def _wait(process: "subprocess.Popen[str]", port: int) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise AssertionError(f"nginx has ended: {process.communicate()[1]}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("nginx does not listen")

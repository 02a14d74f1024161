"""A real S3 server on loopback: moto's, in a process of its own.

It answers the S3 protocol over HTTP and keeps objects in memory: they are lost when it is
killed, as with a bucket that was deleted.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from tests.servers.ports import free_port

ROOT = Path(__file__).parents[2]
BUCKET = "cutwater-test"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "a secret"}


@dataclass
class S3Server:
    """The server as a process that can be killed and started again on the same port."""

    port: int
    _process: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    def start(self) -> None:
        """Start it, with an empty bucket."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.s3_process", str(self.port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert int(self._process.stdout.readline()) == self.port
        self.make_bucket()

    def kill(self) -> None:
        """End it at once; connections to it are refused from now on."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def make_bucket(self, bucket: str = BUCKET) -> None:
        assert self.request("PUT", f"/{bucket}") == 200

    def request(self, method: str, path: str) -> int:
        """Send a request of one's own; return its status."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path)
        status = connection.getresponse().status
        connection.close()
        return status

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str, endpoint: str | None = None) -> str:
        """The address of a store in the bucket."""
        return f"s3://{BUCKET}/{prefix}?endpoint={endpoint or self.endpoint}&region=us-east-1"


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment whose only credentials are those for this server."""
    kept = {name: value for name, value in given.items() if not name.startswith("AWS_")}
    return {**kept, **CREDENTIALS}


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server on a free port, and give this process the credentials for it."""
    server = S3Server(free_port())
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        os.environ.clear()
        os.environ.update(before)

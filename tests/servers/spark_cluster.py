"""A real Spark cluster on loopback: a master and two workers, each a process of its own.

It is Spark's standalone cluster with the usual settings. An application gets two cores, so that
several of them find room, as do a driver that runs and one that is being made ready.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from tests.servers.ports import free_port

from cutwater.spark.session.java import use_java

HOST = "127.0.0.1"
_DEPLOY = "org.apache.spark.deploy"
_DEADLINE_S = 120.0
_READY = "Successfully registered with master"


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """Run a cluster in a directory; yield the address of its master."""
    use_java()
    port = free_port()
    address = f"spark://{HOST}:{port}"
    processes = []
    try:
        words = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        processes.append(_started(directory, "master", "master.Master", words))
        for name in ("worker1", "worker2"):
            work = ["--host", HOST, "--cores", "4", "--memory", "4g", "--webui-port", "0"]
            work += ["--work-dir", str(directory / name), address]
            processes.append(_started(directory, name, "worker.Worker", work))
        for name in ("worker1", "worker2"):
            _wait_for(directory / f"{name}.log", _READY)
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(_DEADLINE_S)


def _started(directory: Path, name: str, kind: str, words: list[str]) -> "subprocess.Popen[bytes]":
    home = Path(pyspark.__file__).parent
    settings = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_MASTER_OPTS": "-Dspark.deploy.defaultCores=2",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{kind}", *words],
            env={**os.environ, **settings},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while words not in log.read_text():
        assert time.monotonic() < deadline, f"{log.name} never said: {words}"
        time.sleep(0.1)

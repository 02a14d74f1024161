"""Runs one query on Flink's Table API; started by Flink's own Python, never imported by ours.

Everything runs in the cluster that Flink embeds in the process's JVM: as many slots as cores, one
task manager. The clock is Flink's own: from the job's submission to its end, without the start of
the cluster. Checkpoints are read from Flink's REST interface while the job runs.

    python -m benchmarks.peers.flink_job TASK.json RESULT.json
"""

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from benchmarks.peers.queries import COLUMNS, DELAY_S, QUERIES
from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

BACKENDS: Final = {"hashmap": "hashmap", "rocksdb": "rocksdb", "unaligned": "rocksdb"}
_LOOK_S: Final = 1.0


def settings(task: dict[str, Any], port: int) -> dict[str, str]:
    """Return Flink's settings: defaults, but for what is the same for all engines of the race."""
    kind = str(task["kind"])
    interval_ms = round(float(task["interval_s"]) * 1000)
    found = {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(task["cores"]),
        "taskmanager.numberOfTaskSlots": str(task["cores"]),
        "taskmanager.memory.managed.size": "512m",
        "rest.port": str(port),
        "rest.bind-port": str(port),
        "state.backend.type": BACKENDS[kind],
        "execution.checkpointing.dir": (Path(task["work"]) / "checkpoints").as_uri(),
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.interval": f"{interval_ms} ms",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.unaligned.enabled": str(kind == "unaligned").lower(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "restart-strategy.type": "none",
        "table.local-time-zone": "UTC",
        "io.tmp.dirs": str(Path(task["work"]) / "tmp"),
    }
    if task.get("mini_batch", True):
        found |= {
            "table.exec.mini-batch.enabled": "true",
            "table.exec.mini-batch.allow-latency": "1 s",
            "table.exec.mini-batch.size": "5000",
        }
    if task.get("restore"):
        found["execution.state-recovery.path"] = str(task["restore"])
    return found


def source(stream: str, task: dict[str, Any]) -> str:
    """Return the statement that declares a stream."""
    columns = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[stream].items())
    options = {
        "connector": "files-in-order",
        "path": (Path(task["streams"]) / stream).as_uri(),
        "format": "parquet",
    }
    if task.get("monitor_s"):
        options["source.monitor-interval"] = f"{round(float(task['monitor_s']) * 1000)} ms"
    return (
        f"CREATE TABLE {stream} ({columns}, event_time AS TO_TIMESTAMP_LTZ(at_ms, 3), "
        f"WATERMARK FOR event_time AS event_time - INTERVAL '{DELAY_S}' SECOND) "
        f"WITH ({_options(options)})"
    )


def sink(name: str, query: str, task: dict[str, Any]) -> str:
    """Return the statement that declares a table to be written."""
    columns = QUERIES[query].outputs[name].columns
    typed = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
    options = {
        "connector": "filesystem",
        "path": (Path(task["target"]) / name).as_uri(),
        "format": "parquet",
        "parquet.compression": "SNAPPY",
    }
    return f"CREATE TABLE `{name}_table` ({typed}) WITH ({_options(options)})"


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


class Checkpoints:
    """Follows the completed checkpoints of a job: how long each took, and its new bytes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._found: dict[int, dict[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, job: str) -> None:
        """Begin to look at this job."""
        self._address = f"http://localhost:{self._port}/jobs/{job}/checkpoints"
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                with urlopen(self._address, timeout=5) as answer:
                    history = json.load(answer)["history"]
            except OSError:
                continue
            for one in history:
                if one["status"] == "COMPLETED":
                    self._found[int(one["id"])] = {
                        "ms": float(one["end_to_end_duration"]),
                        "bytes": float(one["checkpointed_size"]),
                    }

    def end(self) -> list[dict[str, float]]:
        """Return all that were seen; the last one may be missing."""
        self._ended.set()
        self._thread.join()
        return [self._found[number] for number in sorted(self._found)]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return int(taken.getsockname()[1])


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Run the query to the end of its files; return its times."""
    query, port = str(task["query"]), free_port()
    (Path(task["work"]) / "tmp").mkdir(parents=True, exist_ok=True)
    configuration = Configuration()
    for name, value in settings(task, port).items():
        configuration.set_string(name, value)
    environment = TableEnvironment.create(
        EnvironmentSettings.new_instance()
        .in_streaming_mode()
        .with_configuration(configuration)
        .build()
    )
    statements = environment.create_statement_set()
    for stream in QUERIES[query].streams:
        environment.execute_sql(source(stream, task))
    for name, output in QUERIES[query].outputs.items():
        environment.execute_sql(sink(name, query, task))
        statements.add_insert_sql(f"INSERT INTO `{name}_table` {output.flink}")
    client = statements.execute().get_job_client()
    checkpoints = Checkpoints(port)
    checkpoints.start(str(client.get_job_id()))
    ended = client.get_job_execution_result().result()
    ended_s = time.time()
    return {
        "began_s": ended_s - ended.get_net_runtime() / 1000,
        "ended_s": ended_s,
        "checkpoints": checkpoints.end(),
    }


def main() -> None:
    task, result = map(Path, sys.argv[1:3])
    result.write_text(json.dumps(run(json.loads(task.read_text()))))


if __name__ == "__main__":
    main()

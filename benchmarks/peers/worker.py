"""The process of one measurement on Spark or DuckDB; Flink's is `flink_job`.

It runs a query to the end of its files and writes what the engine says of its times; a live run
writes nothing and ends when it is killed.

python -m benchmarks.peers.worker TASK.json RESULT.json
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import duck, spark_engines
from benchmarks.peers.frames import FILES_PER_BATCH

LIVE_FILES: Final = 1000
"""How many files a batch of a live run may read: all that have arrived."""


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Run a query to the end of its files; return its times."""
    query, engine, cores = str(task["query"]), str(task["engine"]), int(task["cores"])
    streams, target = Path(task["streams"]), Path(task["target"])
    live = bool(task.get("live"))
    if engine == "duckdb":
        # It may be done before the watcher has looked twice.
        began_s, used_s = time.time(), time.process_time()
        duck.write_tables(query, streams, target, cores)
        used_s = time.process_time() - used_s
        return {"began_s": began_s, "ended_s": time.time(), "cpu_s": used_s, "checkpoints": []}
    made = spark_engines.Task(
        query=query,
        streams=streams,
        target=target,
        work=Path(task["work"]),
        cores=cores,
        interval_s=float(task["interval_s"]),
        sink=str(task["sink"]),
        files_per_batch=LIVE_FILES if live else FILES_PER_BATCH,
        visibility=str(task.get("visibility", "checkpoint")),
    )
    if live:
        spark_engines.run_live(engine, made)
        raise RuntimeError("a live run ended by itself")
    return asdict(spark_engines.run(engine, made))


def main() -> None:
    task, result = map(Path, sys.argv[1:3])
    result.write_text(json.dumps(run(json.loads(task.read_text()))))


if __name__ == "__main__":
    main()

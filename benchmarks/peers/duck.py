"""DuckDB: what the hardware can do in one process, and the rows that every engine must write.

It reads all files at once and keeps no state, so its time is a limit, not a competitor's.
"""

from pathlib import Path

import duckdb
from benchmarks.peers.queries import QUERIES


def write_tables(query: str, streams: Path, target: Path, threads: int) -> None:
    """Compute all tables of a query into Parquet files, `target/<table>/0.parquet`."""
    with duckdb.connect(config={"threads": threads}) as connection:
        for stream in QUERIES[query].streams:
            files = streams / stream / "*.parquet"
            connection.execute(f"CREATE VIEW {stream} AS FROM read_parquet('{files}')")
        for name, output in QUERIES[query].outputs.items():
            file = target / name / "0.parquet"
            file.parent.mkdir(parents=True)
            connection.execute(f"COPY ({output.duckdb}) TO '{file}' (FORMAT parquet)")

"""What an engine wrote: how many rows, and a digest that does not depend on their order.

Two engines agree when all tables of a query have the same digest. The digest is taken by DuckDB
over the Parquet files that belong to the table, whatever wrote them, and after the clock stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
from benchmarks.peers.queries import END_MS, QUERIES, Output
from deltalake import DeltaTable

_KINDS: Final = {"BIGINT": "BIGINT", "STRING": "VARCHAR", "DOUBLE": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class Digest:
    """A table as a bag of rows: how many, and the sum of their hashes."""

    rows: int
    hash: str


def files_of(table: Path) -> list[Path]:
    """Return the files that a reader of a table sees.

    A Delta table names them in its log. Elsewhere, names that begin with a dot or an underscore are
    hidden; after a run without failures all others are part of the table.
    """
    if (table / "_delta_log").exists():
        uris = DeltaTable(str(table)).file_uris()
        return [Path(uri.removeprefix("file://")) for uri in uris]
    return sorted(
        file
        for file in table.rglob("*")
        if file.is_file()
        and not any(part.startswith((".", "_")) for part in file.relative_to(table).parts)
    )


def digest(files: Sequence[Path], output: Output) -> Digest:
    """Return what these Parquet files hold, without rows that not every engine has written."""
    files = [file for file in files if file.stat().st_size]
    if not files:
        return Digest(0, "0")
    columns = ", ".join(f"CAST({name} AS {_KINDS[kind]})" for name, kind in output.columns.items())
    within = f"WHERE {output.time} < {END_MS}" if output.time else ""
    names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT count(*), coalesce(sum(hash({columns})::HUGEINT), 0)::VARCHAR "
            f"FROM read_parquet([{names}]) {within}"
        ).fetchone()
    assert found is not None
    return Digest(int(found[0]), str(found[1]))


def digests(query: str, directory: Path) -> dict[str, Digest]:
    """Return the digests of all tables of a query, `directory/<table>`."""
    outputs = QUERIES[query].outputs
    return {name: digest(files_of(directory / name), outputs[name]) for name in outputs}


def differences(
    query: str, engine: str, found: Mapping[str, Digest], expected: Mapping[str, Digest]
) -> list[str]:
    """Say which tables are not what DuckDB computed from the same files."""
    return [
        f"{query} on {engine}: table {name} has {found[name].rows:,} rows "
        f"(hash {found[name].hash}), expected {expected[name].rows:,} (hash {expected[name].hash})"
        for name in expected
        if found[name] != expected[name]
    ]


def form(found: Mapping[str, Digest]) -> dict[str, object]:
    """Return digests as a result file has them."""
    return {name: {"rows": one.rows, "hash": one.hash} for name, one in found.items()}

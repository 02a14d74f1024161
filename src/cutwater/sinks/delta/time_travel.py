"""A Delta table's past: whether it can go back to a version, and what that would take away.

A version can be gone back to while its log and its files are there and nobody but the sink has
changed the table since: what somebody else wrote would vanish with it. Versions that change no
rows, as those of OPTIMIZE and VACUUM, stand in nobody's way.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cutwater.protocol.cut import Version
from cutwater.sinks.base import Retreat
from cutwater.sinks.delta.storage import TableRoot
from cutwater.sinks.delta.transaction_log import DeltaLog

NO_TABLE: Final[Version] = "none"
"""The version of a table that does not exist yet."""


def no_table(root: TableRoot, version: Version | None) -> Retreat:
    """Say what going back means where there is no table: nothing, or it cannot be done."""
    if version is None:
        return Retreat(NO_TABLE, 0, 0)
    reason = f"there is no table in {root.address} any more that could go back to version {version}"
    return Retreat(NO_TABLE, 0, obstacle=reason)


def look_back(root: TableRoot, log: DeltaLog, table: DeltaTable, target: int) -> Retreat:
    """Say what going back to a version would do, and whether it can be done."""
    now = table.version()
    rows = _rows(table)
    if target > now:
        never = f"is at version {now} and never was at {target}"
        reason = f"{root.address} {never}: it has been made anew"
        return Retreat(str(now), rows, obstacle=reason)
    foreign = foreign_commit(log, target, now)
    if foreign is not None:
        return Retreat(str(now), rows, obstacle=foreign)
    try:
        then = DeltaTable(root.address, version=target, storage_options=root.options)
        rows_then, missing = _rows(then), _missing_file(root, then)
    except DeltaError as error:
        reason = f"version {target} of {root.address} cannot be read any more: {error}".rstrip(".")
        return Retreat(str(now), rows, obstacle=reason)
    if missing is not None:
        reason = f"{missing} of version {target} is gone from {root.address}, perhaps by VACUUM"
        return Retreat(str(now), rows, rows_then, reason)
    return Retreat(str(now), rows, rows_then)


def foreign_commit(log: DeltaLog, target: int, now: int) -> str | None:
    """Name a change after a version that somebody else has made; None if there is none.

    A log that does not reach back cannot tell, which is as bad.
    """
    for version in range(target + 1, now + 1):
        try:
            actions = log.foreign_actions(version)
        except FileNotFoundError:
            return f"the table's log no longer has version {version}, so who wrote it is unknown"
        if any(_changes_rows(one) for one in actions):
            return f"version {version} was written by somebody else ({_named(actions)})"
    return None


def _changes_rows(action: Mapping[str, Any]) -> bool:
    for kind in ("add", "remove", "cdc"):
        if kind in action:
            return bool(action[kind].get("dataChange", True))
    return "metaData" in action or "protocol" in action


def _named(actions: list[Mapping[str, Any]]) -> str:
    found = (one["commitInfo"] for one in actions if "commitInfo" in one)
    info: Mapping[str, Any] = next(found, {})
    operation = str(info.get("operation", "unknown operation"))
    if "timestamp" not in info:
        return operation
    at = datetime.fromtimestamp(info["timestamp"] / 1000, tz=UTC)
    return f"{operation} at {at:%Y-%m-%d %H:%M:%S} UTC"


def _rows(table: DeltaTable) -> int | None:
    """Count a version's rows by its files' statistics; None if a file has none."""
    counts = _files(table, "num_records")
    return None if any(one is None for one in counts) else sum(counts)


def _missing_file(root: TableRoot, table: DeltaTable) -> str | None:
    names = (unquote(str(one)) for one in _files(table, "path"))
    return next((one for one in names if root.facts(one) is None), None)


def _files(table: DeltaTable, column: str) -> list[Any]:
    actions = pyarrow.table(table.get_add_actions(flatten=True))
    if column not in actions.column_names:
        return [None] * actions.num_rows
    return list(actions.column(column).to_pylist())

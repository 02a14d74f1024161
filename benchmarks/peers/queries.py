"""The six queries of the race: what they write, and how Flink and DuckDB say them in SQL.

`frames` has the same queries as DataFrames, for everything that is Spark. Times are milliseconds in
the files and in the results; every engine makes its own timestamps of them. This module is also
imported by Flink's Python, which has neither Spark nor Arrow of ours: the standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

START_MS: Final = 1_700_000_000_000
SPAN_MS: Final = 1_000_000
"""All streams cover 1,000 seconds, a hundred windows, however many rows there are."""
END_MS: Final = START_MS + SPAN_MS
DELAY_S: Final = 4
"""How far a watermark is behind the newest row."""
WINDOW_S: Final = 10
SLIDE_S: Final = 2
CATEGORY: Final = 10
STATES: Final = ("OR", "ID", "CA")

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "bids": {
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "price": "BIGINT",
        "channel": "STRING",
        "at_ms": "BIGINT",
        "extra": "STRING",
    },
    "auctions": {
        "id": "BIGINT",
        "seller": "BIGINT",
        "category": "BIGINT",
        "reserve": "BIGINT",
        "at_ms": "BIGINT",
        "item": "STRING",
        "description": "STRING",
    },
    "people": {
        "id": "BIGINT",
        "name": "STRING",
        "city": "STRING",
        "state": "STRING",
        "at_ms": "BIGINT",
        "extra": "STRING",
    },
}
"""The columns of the streams, with types that Spark and Flink call the same."""

_STATE_LIST: Final = ", ".join(f"'{state}'" for state in STATES)
_WINDOW_MS: Final = (
    "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT) * 1000"
)
_WINDOW: Final = f"INTERVAL '{WINDOW_S}' SECOND"
_TUMBLE: Final = f"TUMBLE(TABLE {{}}, DESCRIPTOR(event_time), {_WINDOW})"
_HOP: Final = f"HOP(TABLE bids, DESCRIPTOR(event_time), INTERVAL '{SLIDE_S}' SECOND, {_WINDOW})"
_START: Final = f"(at_ms // {WINDOW_S * 1000}) * {WINDOW_S * 1000}"
"""DuckDB: the start of a row's window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One table that a query writes.

    Attributes:
        columns: Its columns with their types.
        flink: The SELECT for Flink.
        duckdb: The SELECT for DuckDB.
        time: The column that says when a row belongs; rows at or after `END_MS` are not compared,
            since not every engine has closed their windows. None: all rows are.
    """

    columns: Mapping[str, str]
    flink: str
    duckdb: str
    time: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of the race.

    Attributes:
        title: What it does, for people.
        streams: What it reads.
        outputs: The tables that it writes.
    """

    title: str
    streams: tuple[str, ...]
    outputs: Mapping[str, Output]


def _counts(key: str) -> Output:
    """Count the bids of each window for each key."""
    return Output(
        columns={"window_ms": "BIGINT", key: "BIGINT", "bids": "BIGINT"},
        flink=f"""SELECT {_WINDOW_MS}, {key}, COUNT(*) FROM TABLE({_TUMBLE.format("bids")})
            GROUP BY window_start, window_end, {key}""",
        duckdb=f"SELECT {_START} AS window_ms, {key}, count(*) AS bids FROM bids GROUP BY ALL",
        time="window_ms",
    )


_CONVERTED: Final = "SELECT auction, bidder, price * 0.908e0 AS euros, at_ms, extra FROM bids"
_RAW: Final = "SELECT auction, bidder, price, channel, at_ms, extra FROM bids"
_JOINED: Final = f"""SELECT p.name, p.city, p.state, a.id AS auction
    FROM auctions AS a JOIN people AS p ON a.seller = p.id
    WHERE a.category = {CATEGORY} AND p.state IN ({_STATE_LIST})"""

QUERIES: Final[Mapping[str, Query]] = {
    "q1": Query(
        title="map",
        streams=("bids",),
        outputs={
            "converted": Output(
                columns={
                    "auction": "BIGINT",
                    "bidder": "BIGINT",
                    "euros": "DOUBLE",
                    "at_ms": "BIGINT",
                    "extra": "STRING",
                },
                flink=_CONVERTED,
                duckdb=_CONVERTED,
                time="at_ms",
            )
        },
    ),
    "q12": Query(
        title="windowed count per bidder",
        streams=("bids",),
        outputs={"per_bidder": _counts("bidder")},
    ),
    "two": Query(
        title="a raw and a counted table from one stream",
        streams=("bids",),
        outputs={
            "raw": Output(columns=COLUMNS["bids"], flink=_RAW, duckdb=_RAW, time="at_ms"),
            "per_auction": _counts("auction"),
        },
    ),
    "q3": Query(
        title="join, no window (state grows)",
        streams=("auctions", "people"),
        outputs={
            "local": Output(
                columns={
                    "name": "STRING",
                    "city": "STRING",
                    "state": "STRING",
                    "auction": "BIGINT",
                },
                flink=_JOINED,
                duckdb=_JOINED,
                time=None,
            )
        },
    ),
    "q5": Query(
        title="sliding windows, chained aggregates",
        streams=("bids",),
        outputs={
            "hottest": Output(
                columns={"window_ms": "BIGINT", "bids": "BIGINT"},
                flink=f"""SELECT {_WINDOW_MS}, MAX(bids) FROM (
                    SELECT window_start, window_end, auction, COUNT(*) AS bids
                    FROM TABLE({_HOP}) GROUP BY window_start, window_end, auction
                ) GROUP BY window_start, window_end""",
                duckdb=f"""SELECT window_ms, max(bids) AS bids FROM (
                    SELECT (at_ms // {SLIDE_S * 1000} - back) * {SLIDE_S * 1000} AS window_ms,
                        auction, count(*) AS bids
                    FROM bids, range({WINDOW_S // SLIDE_S}) AS steps(back) GROUP BY ALL
                ) GROUP BY window_ms""",
                time="window_ms",
            )
        },
    ),
    "q8": Query(
        title="windowed join",
        streams=("people", "auctions"),
        outputs={
            "new_sellers": Output(
                columns={
                    "id": "BIGINT",
                    "name": "STRING",
                    "window_ms": "BIGINT",
                    "auction": "BIGINT",
                },
                flink=f"""SELECT p.id, p.name, {_WINDOW_MS.replace("window_", "p.window_")}, a.id
                    FROM (SELECT * FROM TABLE({_TUMBLE.format("people")})) AS p
                    JOIN (SELECT * FROM TABLE({_TUMBLE.format("auctions")})) AS a
                    ON p.id = a.seller AND p.window_start = a.window_start
                    AND p.window_end = a.window_end""",
                duckdb=f"""SELECT p.id, p.name, p.window_ms, a.id AS auction
                    FROM (SELECT id, name, {_START} AS window_ms FROM people) AS p
                    JOIN (SELECT id, seller, {_START} AS window_ms FROM auctions) AS a
                    ON p.id = a.seller AND p.window_ms = a.window_ms""",
                time="window_ms",
            )
        },
    ),
}

"""The events of the race: bids, auctions and people in the manner of NexMark, as Parquet files.

Every column follows from the row's number, so every run, on every machine, has the same rows. Rows
are in the order of their time, within a file and from file to file, and all streams cover the same
time, so that no engine finds a row late. The last file of a stream has one row from the far future:
it closes all windows of the others. That row is in no result that is compared (`END_MS`).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.peers.queries import END_MS, SPAN_MS, START_MS

AUCTIONS_SHARE: Final = 3
PEOPLE_SHARE: Final = 9
"""So many bids for one auction, and for one person; NexMark's own joins are smaller."""

FLUSH_MS: Final = END_MS + 3_600_000
STATES: Final = np.array(["OR", "ID", "CA", "WA", "AZ", "WY"])
CITIES: Final = np.array(["Portland", "Boise", "Oakland", "Seattle", "Phoenix", "Laramie", "Kent"])
CHANNELS: Final = np.array(["Google", "Facebook", "Baidu", "Apple"])

Numbers = npt.NDArray[np.int64]


def rows_of(bids: int) -> dict[str, int]:
    """Return how many rows each stream has, for this many bids."""
    return {
        "bids": bids,
        "auctions": max(1, bids // AUCTIONS_SHARE),
        "people": max(1, bids // PEOPLE_SHARE),
    }


def mix(numbers: Numbers, salt: int) -> Numbers:
    """Return numbers below 2^31 that look drawn by chance."""
    mixed = (numbers + salt * 0x9E3779B9).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(16))) * np.uint64(0x45D9F3B)
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(0x2C1B3C6D)
    return ((mixed ^ (mixed >> np.uint64(13))) & np.uint64(0x7FFFFFFF)).astype(np.int64)


def filler(numbers: Numbers, salt: int, length: int) -> pa.Array:
    """Return texts of one length that hardly compress."""
    words = [mix(numbers, salt + word) for word in range(-(-length // 4))]
    letters = np.stack(words, axis=1).astype("<u4").view(np.uint8)[:, :length] % 26 + ord("a")
    offsets = np.arange(0, (len(numbers) + 1) * length, length, dtype=np.int32)
    data = np.ascontiguousarray(letters, dtype=np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(numbers), buffers)


def times(numbers: Numbers, total: int) -> Numbers:
    """Return the time of each row: evenly over the whole span."""
    return START_MS + numbers * SPAN_MS // total


def bids(numbers: Numbers, totals: Mapping[str, int]) -> pa.Table:
    """Return bids: a fifth of them on a few auctions that many want."""
    newest = numbers * totals["auctions"] // totals["bids"]
    recent = np.maximum(newest - mix(numbers, 1) % _active(totals["auctions"]), 0)
    wanted = newest // 100 * 100
    hot = mix(numbers, 2) % 5 == 0
    return pa.table(
        {
            "auction": np.where(hot, wanted, recent),
            "bidder": mix(numbers, 3) % max(1, totals["people"] // 10),
            "price": 100 + mix(numbers, 4) % 10_000_000,
            "channel": pa.array(CHANNELS[mix(numbers, 5) % len(CHANNELS)]),
            "at_ms": times(numbers, totals["bids"]),
            "extra": filler(numbers, 100, 50),
        }
    )


def auctions(numbers: Numbers, totals: Mapping[str, int]) -> pa.Table:
    """Return auctions; their sellers are people of the last windows."""
    newest = numbers * totals["people"] // totals["auctions"]
    return pa.table(
        {
            "id": numbers,
            "seller": np.maximum(newest - mix(numbers, 6) % _active(totals["people"]), 0),
            "category": 10 + mix(numbers, 7) % 5,
            "reserve": 100 + mix(numbers, 8) % 10_000_000,
            "at_ms": times(numbers, totals["auctions"]),
            "item": filler(numbers, 200, 20),
            "description": filler(numbers, 300, 400),
        }
    )


def people(numbers: Numbers, totals: Mapping[str, int]) -> pa.Table:
    """Return people."""
    return pa.table(
        {
            "id": numbers,
            "name": filler(numbers, 400, 16),
            "city": pa.array(CITIES[mix(numbers, 9) % len(CITIES)]),
            "state": pa.array(STATES[mix(numbers, 10) % len(STATES)]),
            "at_ms": times(numbers, totals["people"]),
            "extra": filler(numbers, 500, 120),
        }
    )


STREAMS: Final[Mapping[str, Callable[[Numbers, Mapping[str, int]], pa.Table]]] = {
    "bids": bids,
    "auctions": auctions,
    "people": people,
}


def flush_row(stream: str, totals: Mapping[str, int]) -> pa.Table:
    """Return the one row that ends a stream; it joins with nothing."""
    row = STREAMS[stream](np.zeros(1, dtype=np.int64), totals)
    keys = {"id": -1, "seller": -2, "category": 0, "auction": -1, "bidder": -1}
    for name, value in {**keys, "at_ms": FLUSH_MS}.items():
        if name in row.column_names:
            place = row.column_names.index(name)
            row = row.set_column(place, name, pa.array([value], pa.int64()))
    return row


def table_of(stream: str, file: int, files: int, totals: Mapping[str, int]) -> pa.Table:
    """Return one of the files of a stream."""
    first, end = (totals[stream] * edge // files for edge in (file, file + 1))
    return STREAMS[stream](np.arange(first, end, dtype=np.int64), totals)


def generate(directory: Path, bids: int, files: int) -> None:
    """Write all streams, `directory/<stream>/<number>.parquet`, in the order they are read in."""
    totals = rows_of(bids)
    for stream in STREAMS:
        (directory / stream).mkdir(parents=True)
        for file in range(files):
            _write(table_of(stream, file, files, totals), directory / stream, file)
        _write(flush_row(stream, totals), directory / stream, files)


def _write(table: pa.Table, directory: Path, number: int) -> None:
    path = directory / f"{number:05}.parquet"
    pq.write_table(table, path, row_group_size=1_000_000)
    # Spark takes files by the time they were changed; long ago, and one second apart.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _active(total: int) -> int:
    """Return how many of these are new within one window."""
    return max(1, total // 100)

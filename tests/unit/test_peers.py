"""The pure parts of the race of engines; nothing here looks at a time, or starts Spark or Flink.

`tests/cli/test_benchmarks_on_spark.py` runs it.
"""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.measuring import command_of, parsed
from benchmarks.peers import __main__ as peers
from benchmarks.peers import (
    data,
    duck,
    flink_setup,
    latency,
    live,
    recovery,
    report,
    results,
    throughput,
    visible,
)
from benchmarks.peers.bars import BarChart, Group, bar_svg
from benchmarks.peers.frames import FRAMES
from benchmarks.peers.queries import COLUMNS, END_MS, QUERIES, START_MS
from benchmarks.peers.watching import Sample, use_between

BIDS = 2000
FILES = 3


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("race") / "streams"
    data.generate(made, BIDS, FILES)
    return made


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """All rows but the one from the far future."""
    tables = [pq.read_table(file) for file in sorted(directory.iterdir())]
    rows: list[dict[str, Any]] = pa.concat_tables(tables[:-1]).to_pylist()
    return rows


def tables_of(query: str, streams: Path, target: Path) -> dict[str, list[dict[str, Any]]]:
    """What DuckDB computes, within the time that is compared."""
    duck.write_tables(query, streams, target, 1)
    return {
        name: [
            row
            for row in pq.read_table(target / name / "0.parquet").to_pylist()
            if output.time is None or row[output.time] < END_MS
        ]
        for name, output in QUERIES[query].outputs.items()
    }


# -- the events


@pytest.mark.parametrize("stream", sorted(COLUMNS))
def test_a_stream_is_in_the_order_of_time_from_file_to_file(stream: str, streams: Path) -> None:
    files = sorted((streams / stream).iterdir(), key=lambda file: file.stat().st_mtime)
    times = [row["at_ms"] for row in rows_of(streams / stream)]

    assert [file.name for file in files] == [f"{number:05}.parquet" for number in range(FILES + 1)]
    assert len(times) == data.rows_of(BIDS)[stream]
    assert times == sorted(times)
    assert START_MS <= times[0] < times[-1] < END_MS
    assert pq.read_table(files[-1])["at_ms"].to_pylist() == [data.FLUSH_MS]
    assert {pq.read_schema(file).names == list(COLUMNS[stream]) for file in files} == {True}


def test_a_row_follows_from_its_number_whatever_the_file() -> None:
    totals = data.rows_of(BIDS)
    whole = data.table_of("bids", 0, 1, totals)

    parts = pa.concat_tables(data.table_of("bids", file, 7, totals) for file in range(7))

    assert parts.combine_chunks().equals(whole.combine_chunks())


def test_texts_have_their_length_and_differ() -> None:
    texts = data.filler(np.arange(100, dtype=np.int64), 1, 50).to_pylist()

    assert {len(text) for text in texts} == {50}
    assert len(set(texts)) == 100


# -- the queries


def test_every_engine_knows_the_same_tables() -> None:
    named = {query: set(tables) for query, tables in FRAMES.items()}

    assert named == {query: set(QUERIES[query].outputs) for query in QUERIES}


@pytest.mark.parametrize("query", sorted(QUERIES))
def test_every_query_has_rows_to_compare(query: str, streams: Path, tmp_path: Path) -> None:
    tables = tables_of(query, streams, tmp_path)

    assert all(tables.values())
    assert {name: set(rows[0]) for name, rows in tables.items()} == {
        name: set(output.columns) for name, output in QUERIES[query].outputs.items()
    }


def test_windows_count_each_bid_once(streams: Path, tmp_path: Path) -> None:
    expected = Counter(
        (bid["at_ms"] // 10_000 * 10_000, bid["bidder"]) for bid in rows_of(streams / "bids")
    )

    found = tables_of("q12", streams, tmp_path)["per_bidder"]

    assert {(row["window_ms"], row["bidder"]): row["bids"] for row in found} == expected


def test_sliding_windows_have_the_most_bids_of_any_auction(streams: Path, tmp_path: Path) -> None:
    counts = Counter(
        ((bid["at_ms"] // 2000 - back) * 2000, bid["auction"])
        for bid in rows_of(streams / "bids")
        for back in range(5)
    )
    expected: dict[int, int] = {}
    for (window, _), bids in counts.items():
        expected[window] = max(bids, expected.get(window, 0))

    found = tables_of("q5", streams, tmp_path)["hottest"]

    # DuckDB also has the windows that begin before the end and reach beyond it: so have the others.
    assert {row["window_ms"]: row["bids"] for row in found} == expected


def test_a_windowed_join_joins_within_a_window_alone(streams: Path, tmp_path: Path) -> None:
    people = {person["id"]: person for person in rows_of(streams / "people")}
    expected = sorted(
        (auction["seller"], auction["id"])
        for auction in rows_of(streams / "auctions")
        if people[auction["seller"]]["at_ms"] // 10_000 == auction["at_ms"] // 10_000
    )

    found = tables_of("q8", streams, tmp_path)["new_sellers"]

    assert sorted((row["id"], row["auction"]) for row in found) == expected


# -- results


def test_a_digest_depends_on_rows_and_not_on_their_order(tmp_path: Path) -> None:
    output = QUERIES["q12"].outputs["per_bidder"]
    rows = [{"window_ms": START_MS, "bidder": number, "bids": 1} for number in range(10)]
    late = {"window_ms": END_MS, "bidder": 1, "bids": 1}
    written = {
        "one": [rows],
        "parts": [rows[7:], [late, *reversed(rows[:7])]],
        "twice": [rows, rows[:1]],
        "other": [[*rows[1:], {**rows[0], "bids": 2}]],
    }
    found = {}
    for name, parts in written.items():
        files = [tmp_path / f"{name}-{number}.parquet" for number in range(len(parts))]
        for file, part in zip(files, parts, strict=True):
            pq.write_table(pa.Table.from_pylist(part), file)
        found[name] = results.digest(files, output)

    assert found["one"] == found["parts"]
    assert [found[name].rows for name in written] == [10, 10, 11, 10]
    assert found["other"] != found["one"]
    assert results.differences(
        "q12", "x", {"per_bidder": found["other"]}, {"per_bidder": found["one"]}
    )
    assert not results.differences("q12", "x", found, found)


def test_a_table_that_was_never_written_has_no_rows(tmp_path: Path) -> None:
    assert results.digests("q12", tmp_path) == {"per_bidder": results.Digest(0, "0")}


def test_unfinished_files_belong_to_no_table(tmp_path: Path) -> None:
    for name in ("a.parquet", ".part.inprogress", "_metadata/1", ".b.crc", "deep/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert [file.name for file in results.files_of(tmp_path)] == ["a.parquet", "c"]


# -- measuring


def test_processor_time_is_taken_between_two_moments() -> None:
    samples = [Sample(0.0, 1.0, 10.0), Sample(2.0, 3.0, 30.0), Sample(4.0, 7.0, 20.0)]

    use = use_between(samples, 1.0, 3.0)

    assert use.cpu_s == pytest.approx(3.0)
    assert use.memory_mb_max == 30.0
    assert use_between(samples, -1.0, 9.0).cpu_s == pytest.approx(6.0)
    assert use_between([], 0.0, 1.0).cpu_s == 0.0


def test_processor_time_of_a_member_that_ended_unseen_still_counts() -> None:
    samples = [Sample(0.0, 1.0, 10.0), Sample(1.0, 9.0, 30.0), Sample(2.0, 2.0, 20.0)]

    assert use_between(samples, 0.0, 1.5).cpu_s == pytest.approx(8.0)


def measurements() -> dict[str, dict[str, list[dict[str, Any]]]]:
    def run(seconds: float) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "cpu_seconds": 2 * seconds,
            "memory_mb_max": 512.0,
            "checkpoints": [{"ms": 20.0, "bytes": 2048.0}],
            "tables": {"converted": {"rows": 7, "hash": "1"}},
        }

    return {"q1": {"cutwater": [run(2.0), run(4.0)], "spark": [run(6.0)], "tuned": []}}


def test_a_ratio_says_how_many_times_as_fast_cutwater_was() -> None:
    assert report.ratios_of(measurements()["q1"]) == {"spark": 2.0}
    assert report.ratios_of({"spark": measurements()["q1"]["spark"]}) == {}


def test_the_race_shows_times_ratios_and_what_they_took() -> None:
    shown = report.show(measurements())

    assert re.search(r"q1 map +3\.00 \(2\.50\.\.3\.50\) +6\.00 \(6\.00\.\.6\.00\) +–", shown)
    assert re.search(r"q1 map +2\.00x +–", shown)
    assert re.search(r"q1 cutwater +6\.00 +512 +7 +1\.00 +20\.0 +2\.00", shown)


def test_a_bar_chart_is_well_formed_and_has_every_bar() -> None:
    chart = BarChart(
        title="a < b",
        y_label="seconds",
        groups=(
            Group("q1", {"x": (1.0, 0.5, 1.5), "y": (2.0, 2.0, 2.0)}),
            Group("q2", {"y": (3.0, 2.0, 4.0)}),
        ),
    )

    drawn = ET.fromstring(bar_svg(chart))

    name = "{http://www.w3.org/2000/svg}"
    titles = [one.text for one in drawn.iter(f"{name}title")]
    assert titles == ["x: 1.00", "y: 2.00", "y: 3.00"]
    assert {"a < b", "q1", "q2"} <= {one.text for one in drawn.iter(f"{name}text")}


def test_the_chart_of_the_race_has_a_group_for_each_query() -> None:
    chart = report.chart(measurements(), 100)

    assert [group.name for group in chart.groups] == ["q1"]
    assert chart.names == ("cutwater", "spark")


# -- options


def test_the_race_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        peers.main(["--help"])

    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith("usage: python -m benchmarks.peers ")
    assert "benchmarks/results/peers.json" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--queries", "q1,q99"], "unknown queries: q99"),
        (["--engines", "cutwater,storm"], "unknown engines: storm"),
        (["--master", "local[*]"], "--master must be local[N]"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        peers.main(words)

    assert said in capsys.readouterr().err


def test_a_result_names_the_command_with_its_switches() -> None:
    options = peers.parser()
    given = parsed(options, ["--smoke", "--latency", "--queries", "q1"], peers.SMOKE)

    command = command_of(options, given)

    assert command == "python -m benchmarks.peers --smoke --queries q1 --latency"


def test_every_round_has_all_cases_and_begins_with_another_engine() -> None:
    cases = [(query, engine) for query in ("q1", "q3") for engine in ("a", "b")]

    turns = throughput.rounds(cases, ["q1", "q3"], 2)

    assert turns == [
        *(("q1", "a"), ("q1", "b"), ("q3", "a"), ("q3", "b")),
        *(("q1", "b"), ("q1", "a"), ("q3", "b"), ("q3", "a")),
    ]


def test_where_flink_cannot_be_had_the_others_run_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> flink_setup.Flink:
        raise flink_setup.Unavailable("there is no mvn on the path")

    monkeypatch.setattr(flink_setup, "prepare", missing)

    engines, flink, left_out = throughput.available(["cutwater", "flink-rocksdb"])

    assert (engines, flink) == (["cutwater"], None)
    assert left_out == {"flink-rocksdb": "there is no mvn on the path"}
    assert "Without Flink: there is no mvn on the path" in capsys.readouterr().out


# -- live runs


def test_only_engines_that_stream_run_live_and_cutwater_twice() -> None:
    found = live.live_cases(["cutwater", "spark", "batch", "duckdb", "flink-hashmap"])

    assert found == ["cutwater", "cutwater-batch", "spark", "flink-hashmap"]


def test_rows_that_arrive_carry_the_number_of_their_file() -> None:
    rows = live.arriving(7, 20)

    assert set(rows["auction"].to_pylist()) == {7}
    assert rows.column_names == list(COLUMNS["bids"])
    assert rows["at_ms"][0].as_py() > live.arriving(6, 20)["at_ms"][-1].as_py()


def write(table: Path, name: str, number: int, rows: int = 2) -> Path:
    table.mkdir(exist_ok=True)
    pq.write_table(live.arriving(number, rows), table / name)
    return table / name


def test_a_row_in_delta_is_visible_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    reader = visible.Reader(visible.listing_of("cutwater-batch", tmp_path))
    write(tmp_path, "a b.parquet", 3)
    reader.look()
    before = dict(reader.at_s)

    entry = {"add": {"path": "a%20b.parquet"}}
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text(json.dumps(entry) + "\n")
    reader.look()

    assert before == {}
    assert list(reader.at_s) == [3]
    assert reader.rows == {3: 2}


def test_a_row_in_sparks_file_sink_is_visible_with_its_log_entry(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    files = [write(tmp_path, f"{number}.parquet", number) for number in range(2)]
    lines = [json.dumps({"path": file.as_uri(), "action": "add"}) for file in files]
    reader = visible.Reader(visible.listing_of("spark", tmp_path))

    (log / "0").write_text("\n".join(["v1", lines[0]]))
    reader.look()
    first = dict(reader.rows)
    (log / "1.compact").write_text("\n".join(["v1", *lines]))
    reader.look()

    assert first == {0: 2}
    assert reader.rows == {0: 2, 1: 2}


def test_a_row_in_a_directory_is_visible_when_its_file_is_not_hidden(tmp_path: Path) -> None:
    table = tmp_path / "table"
    reader = visible.Reader(visible.listing_of("flink-hashmap", table))
    reader.look()
    file = write(table, ".part-0.inprogress", 5)
    reader.look()
    before = dict(reader.rows)

    file.rename(table / "part-0")
    reader.look()

    assert before == {}
    assert reader.rows == {5: 2}


def test_latency_and_recovery_are_shown_by_case() -> None:
    shown = latency.show({"spark": [{"seconds": [0.1, 0.2, 0.9], "cores": 1.5}], "tuned": []})
    restarted = recovery.show({"cutwater": [{"seconds": 3.0}], "spark": [{"seconds": 2.0}]})

    assert re.search(r"spark +0\.20 +0\.90 +0\.90 +0\.90 +1\.50", shown)
    assert "tuned" not in shown
    assert re.search(r"cutwater +3\.00 \(3\.00\.\.3\.00\) +1\.50", restarted)

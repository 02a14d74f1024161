"""The benchmarks run and print what they promise; nothing here looks at a time.

Those on Spark are not run here: what is checked are their options and their pure parts.
`tests/cli/test_benchmarks_on_spark.py` runs them.
"""

import argparse
import importlib
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from benchmarks import (
    alignment,
    chain,
    chain_report,
    idle,
    interval,
    latency,
    measuring,
    processes,
    steady,
    unaligned,
)
from benchmarks.plot import Chart, Line, svg, ticks
from deltalake import write_deltalake

DIRECTORY = Path(alignment.__file__).parent
ON_SPARK = sorted(
    path.stem for path in DIRECTORY.glob("*.py") if "\nSMOKE: Final = " in path.read_text()
)
"""All benchmarks but that of the pure machine."""


def test_the_alignment_benchmark_prints_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    alignment.main(["--repeats", "1", "--messages", "400"])

    printed = capsys.readouterr().out
    measured, compared = printed.split("\nCost of one message with 200 inputs")
    kinds = [
        "Event",
        "Event, aligning",
        "Event, over bound",
        "barrier, aligned",
        "barrier, overtaking",
    ]
    named = [line[:32].rstrip() for line in measured.splitlines()[3:]]
    assert named == [
        "idle poll",
        *(f"{kind}, {count} inputs" for kind in kinds for count in (2, 16, 200)),
    ]
    assert [line[:32].rstrip() for line in compared.splitlines()[2:]] == kinds


# -- options and result files


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


def test_every_benchmark_on_spark_is_found_and_told_of() -> None:
    others = {"alignment", "chain_report", "measuring", "plot", "processes"}
    told = (DIRECTORY / "README.md").read_text()

    assert others | set(ON_SPARK) == {path.stem for path in DIRECTORY.glob("*.py")}
    assert [name for name in ON_SPARK if f"| `{name}` |" not in told] == []


@pytest.mark.parametrize("name", ON_SPARK)
def test_every_benchmark_on_spark_says_how_it_is_used(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        module_of(name).main(["--help"])

    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith(f"usage: python -m benchmarks.{name} ")
    assert f"benchmarks/results/{name}.json" in said
    assert "--smoke" in said
    assert "--worker" not in said


@pytest.mark.parametrize("name", ON_SPARK)
def test_a_benchmark_names_its_own_command_in_its_docstring(name: str) -> None:
    assert f"    python -m benchmarks.{name} [--" in (module_of(name).__doc__ or "")


def parser_for_tests() -> argparse.ArgumentParser:
    parser = measuring.options_of("example", "Measure nothing.", repeats=5)
    parser.add_argument("--batch-rows", type=int, default=1000)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


def test_smoke_stands_in_only_for_options_that_were_not_given() -> None:
    smoke = {"repeats": 1, "batch_rows": 10}

    tiny = measuring.parsed(parser_for_tests(), ["--smoke", "--repeats", "2"], smoke)
    whole = measuring.parsed(parser_for_tests(), [], smoke)

    assert (tiny.repeats, tiny.batch_rows) == (2, 10)
    assert (whole.repeats, whole.batch_rows) == (5, 1000)


def test_a_result_file_holds_the_command_the_machine_and_no_path(tmp_path: Path) -> None:
    parser = parser_for_tests()
    output = tmp_path / "results" / "example.json"
    words = ["--batch-rows", "7", "--work", str(tmp_path), "--output", str(output)]
    given = measuring.parsed(parser, words, {})

    measuring.publish(parser, given, {"rows": [1, 2]}, {"cores": 2})

    assert json.loads(output.read_text()) == {
        "command": "python -m benchmarks.example --batch-rows 7",
        "machine": {"cores": 2},
        "settings": {"batch_rows": 7, "master": "local[2]", "repeats": 5, "smoke": False},
        "measured": {"rows": [1, 2]},
    }


def test_the_command_of_a_smoke_run_does_not_repeat_its_tiny_values() -> None:
    parser = parser_for_tests()
    given = measuring.parsed(parser, ["--smoke", "--master", "local[1]"], {"batch_rows": 3})

    assert measuring.command_of(parser, given) == (
        "python -m benchmarks.example --smoke --master 'local[1]'"
    )


# -- numbers and tables


def test_a_spread_is_the_median_with_its_quartiles() -> None:
    found = measuring.spread([5, 1, 3, 2, 4])

    assert (found.middle, found.quartiles) == (3, (2, 4))
    assert str(found) == "3.00 (2.00..4.00)"
    assert found.form() == {"median": 3, "quartiles": [2, 4], "samples": [5, 1, 3, 2, 4]}
    assert str(measuring.spread([1234.5])) == "1,234 (1,234..1,234)"


def test_rounds_begin_with_another_case_each() -> None:
    assert [case for _, case in measuring.interleaved("abc", 3)] == list("abcbcacab")
    assert [repeat for repeat, _ in measuring.interleaved("ab", 2)] == [0, 0, 1, 1]


def test_a_table_aligns_names_left_and_numbers_right() -> None:
    found = measuring.table(("", "rows"), [("one", 5), ("three", 1000)])

    assert found.splitlines() == ["       rows", "one       5", "three  1000"]


def test_processor_time_is_read_behind_any_process_name() -> None:
    fields = " ".join(["S", "41", *("0",) * 9, "100", "50", "20", "30", "9"])

    stat = f"42 (a ) name) {fields}"

    assert processes.parent_of(stat) == 41
    assert processes.cpu_seconds_of(stat, 100) == 2.0


def test_this_process_is_the_first_of_its_family() -> None:
    assert processes.family()[0] == os.getpid()
    assert processes.entries(os.getpid(), "task") >= 1
    assert processes.threads_named(os.getpid(), "no such name") == 0
    assert processes.memory_mb(os.getpid()) > 1
    assert processes.milliseconds_by_work()[processes.PYTHON] > 0


def test_a_timed_method_still_does_its_work() -> None:
    class Adder:
        def add(self, one: int, *, other: int) -> int:
            return one + other

    taken: list[float] = []
    measuring.timed(Adder, "add", taken)

    assert Adder().add(1, other=2) == 3
    assert len(taken) == 1


# -- what a benchmark makes of its samples


def diamond_rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    start = np.datetime64("2026-01-01T00:00:00", "us")
    at = start + (numbers * 500).astype("timedelta64[us]")
    stamps = pa.array(at).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "value": numbers,
            "twice": numbers * 2,
            "thrice": numbers * 3,
            "price": numbers // 100 % 7 + 1,
            "at": stamps,
        }
    )


def test_a_right_table_has_no_wrong_rows_in_any_order() -> None:
    rows = diamond_rows(100)

    assert unaligned.wrong_rows(rows, 100, 2000.0) == 0
    assert unaligned.wrong_rows(rows.take(list(reversed(range(100)))), 100, 2000.0) == 0


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (diamond_rows(99), 1),
        (pa.concat_tables([diamond_rows(100), diamond_rows(3)]), 3),
        (diamond_rows(102), 2),
        (diamond_rows(100).set_column(2, "thrice", pa.array(np.arange(100) * 2)), 99),
        (diamond_rows(100).set_column(3, "price", pa.array(np.arange(100) // 50 + 1)), 50),
        (diamond_rows(100).set_column(4, "at", diamond_rows(100)["at"].take([0] * 100)), 99),
    ],
    ids=["missing", "twice", "too many", "another value", "another price", "another time"],
)
def test_wrong_rows_are_counted(rows: pa.Table, wrong: int) -> None:
    assert unaligned.wrong_rows(rows, 100, 2000.0) == wrong


def test_checkpoints_behind_a_backlog_are_shown_by_mode() -> None:
    cases = [unaligned.Case(mode, size) for size in (2, 6) for mode in unaligned.MODES]
    outcomes = [
        unaligned.Outcome(
            case,
            (unaligned.Taken(1000 * case.backlog, case.mode == "forced", 2048, case.backlog, 9),),
            100,
            int(case == cases[0]),
        )
        for case in cases
    ]

    lines = unaligned.show(outcomes, cases).splitlines()
    drawn = unaligned.chart(outcomes, cases)

    assert lines[1].endswith("1 WRONG")
    assert all(line.endswith("exact") for line in lines[2:])
    assert [(line.name, line.points) for line in drawn.lines] == [
        (mode, ((2.0, 2.0), (6.0, 6.0))) for mode in unaligned.MODES
    ]


def test_a_batch_ends_before_its_commit_log_is_written() -> None:
    took = {"triggerExecution": 300, "commitOffsets": 20, "latestOffset": 80}
    progress = {"timestamp": "1970-01-01T00:00:10.500Z", "durationMs": took}

    assert chain.ended_ms(progress) == 10_780
    assert steady.batch_ms(progress) == 220


def test_nine_of_ten_rows_pass_the_filter_of_the_chain() -> None:
    rows = chain.numbers(250, 1000)

    assert rows["id"].to_pylist() == list(range(250, 1250))
    assert sum(amount > 0 for amount in rows["amount"].to_pylist()) == 900
    assert set(rows["key"].to_pylist()) <= set(range(chain.KEYS))


def test_the_chain_shows_each_way_beside_the_others() -> None:
    def run(seconds: float) -> dict[str, object]:
        return {
            "seconds": seconds,
            "warm_seconds": seconds,
            "warm_rows": 90,
            "hop_ms": [10.0, 20.0],
            "file_to_count_ms": [30.0],
            "second_batches": 4,
            "second_ms": {"addBatch": 7.0},
            "work_ms": {"Python": 3.0},
            "write_ms": 5.0,
            "append_ms": 0.5,
        }

    found = {"spark": [run(2.0)], "tuned": [run(1.0)], "cutwater": [run(0.5)]}

    lines = chain_report.show(found, 100).splitlines()

    assert lines[3].split()[:5] == ["cutwater", "200", "(200..200)", "4.00", "2.00"]
    assert ["addBatch", "7.00", "7.00", "7.00"] in [line.split() for line in lines]
    assert ["Python", "3.00", "3.00", "3.00"] in [line.split() for line in lines]


def test_frequent_checkpoints_are_compared_with_the_rarest() -> None:
    def run(rate: float) -> dict[str, object]:
        return {"rows_per_second": rate, "checkpoints": 3, "checkpoint_ms": [10], "cpu_seconds": 5}

    shown = interval.show({"1s": [run(90.0)], "24h": [run(100.0)]})

    assert shown.splitlines()[1].split()[3] == "0.900"


def test_idle_steps_are_shown_with_every_measure() -> None:
    shown = idle.show({"nothing": [dict.fromkeys(idle.MEASURES, 1.0)]})

    assert shown.splitlines()[1].split().count("1.00") == len(idle.MEASURES)


def test_the_last_batches_are_compared_with_early_ones_behind_the_start() -> None:
    points = [(float(at), float(at)) for at in range(200)]

    assert steady.compared(points, 50) == (
        [float(at) for at in range(50, 100)],
        [float(at) for at in range(150, 200)],
    )
    assert steady.compared(points[:4], 50) == ([0.0, 1.0], [2.0, 3.0])


def test_a_running_median_does_not_follow_one_slow_batch() -> None:
    points = [(float(at), 100.0 if at == 5 else 1.0) for at in range(10)]

    assert steady.running_median(points, 4) == [(float(at), 1.0) for at in range(10)]


def test_scratch_is_counted_by_partition_and_pins_are_not(tmp_path: Path) -> None:
    for name in (
        "g1/counts/query/state/0/0/1_a.changelog",
        "g1/counts/query/state/0/0/2_b.changelog",
        "g1/counts/query/state/0/1/1_a.changelog",
        "g1/counts/query/state/0/1/2_b.changelog",
        "g1/counts/query/state/0/1/2_b.zip",
        *(f"g1/counts/pins/7/state/0/0/{batch}_a.changelog" for batch in range(5)),
        "g1/counts/query/offsets/1",
        "g1/counts/query/commits/1",
        "g1/numbers/channel/data/b000000000001/part-0.parquet",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("12")

    assert steady.files_of(tmp_path) == {
        "scratch_files": 13,
        "scratch_bytes": 26,
        "changelogs_per_partition": 2,
        "snapshots_per_partition": 0,
        "offsets_and_commits": 2,
        "channel_events": 1,
    }


# -- charts


@pytest.mark.parametrize(
    ("highest", "found"),
    [
        (10, [0, 2, 4, 6, 8, 10]),
        (0.9, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (37, [0, 10, 20, 30, 40]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1200, [0, 500, 1000, 1500]),
    ],
)
def test_an_axis_has_round_numbers(highest: float, found: list[float]) -> None:
    assert ticks(highest) == pytest.approx(found)


def test_a_chart_is_well_formed_and_draws_what_it_was_given() -> None:
    chart = Chart(
        'Time & "place" < here',
        "x",
        "y",
        (
            Line("waits", ((1, 10), (3, 30)), ((9, 11), (28, 33))),
            Line("forced", ((1, 1), (3, 1))),
            Line("dots", ((1, 5), (2, 5)), joined=False),
        ),
    )

    root = ET.fromstring(svg(chart))

    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == 'Time & "place" < here'
    assert {"waits", "forced", "dots", "x", "y"} <= set(texts)
    drawn = [element.get("d", "") for element in root.iter("{http://www.w3.org/2000/svg}path")]
    # The axes end at 3 and 40, and the frame is 70..736 across and 368..78 up.
    assert "M292.0 295.5L736.0 150.5" in drawn
    assert "M736.0 165.0V128.8" in drawn
    assert "M292.0 331.8h0M514.0 331.8h0" in drawn
    assert "prefers-color-scheme: dark" in svg(chart)


def test_a_chart_of_nothing_but_zero_can_be_drawn() -> None:
    ET.fromstring(svg(Chart("t", "x", "y", (Line("none", ((0, 0),)),))))


# -- latency


def test_a_reader_notes_when_a_number_was_first_in_the_table(tmp_path: Path) -> None:
    root = tmp_path / "table"
    write_deltalake(root, pa.table({"number": pa.array([1, 2], pa.int64())}))
    reader = latency.Reader(root)
    reader.look()
    first = dict(reader.at_s)
    write_deltalake(root, pa.table({"number": pa.array([2, 3], pa.int64())}), mode="append")
    reader.look()

    assert sorted(first) == [1, 2]
    assert sorted(reader.at_s) == [1, 2, 3]
    assert reader.at_s[2] == first[2]


def test_the_latency_benchmark_shows_quantiles_of_all_rounds() -> None:
    found = {"batch:5s": [{"seconds": [0.1] * 98 + [0.5, 2.0], "versions": 7}]}

    *_, row = latency.show(found).splitlines()

    assert row.split() == ["batch,", "5s", "0.10", "0.10", "2.00", "2.00", "7"]

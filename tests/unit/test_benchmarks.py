"""The benchmarks run and print what they promise; nothing here looks at a time."""

import pytest
from benchmarks import alignment


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

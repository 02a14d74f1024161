"""The simulator's command line, as a person types it."""

import pytest

from cutwater.testing.simulation.__main__ import main


def test_a_clean_campaign_ends_with_zero_and_counts_what_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--seeds", "6", "--jobs", "1"])

    printed = capsys.readouterr().out
    assert code == 0
    assert "6/6 seeds, 0 wrong" in printed
    assert "Faults delivered" in printed
    assert "All 6 seeds pass." in printed


def test_a_failure_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seeds", "4", "--jobs", "1", "--sabotage", "prepare-since-last-prepare"])

    printed = capsys.readouterr().out
    assert code == 1
    assert "WRONG  seed" in printed
    assert "python -m cutwater.testing.simulation --seed" in printed
    assert "--sabotage prepare-since-last-prepare" in printed


def test_a_replay_prints_one_line_per_event_with_its_legend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--seed", "3", "--shape", "line", "--mode", "aligned"])

    printed = capsys.readouterr().out
    assert code == 0
    assert "time  process  actor" in printed
    assert "! append barrier 1" in printed
    assert "No checker objects." in printed


def test_a_replay_of_a_sabotaged_seed_ends_with_its_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--seed", "0", "--shape", "straight", "--sabotage", "acknowledge-before-commit"])

    assert code == 1
    assert "WRONG: " in capsys.readouterr().out


def test_sabotages_are_listed_with_their_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-sabotages"]) == 0

    printed = capsys.readouterr().out
    assert "skip-the-hold" in printed
    assert "F18b" in printed


def test_no_seeds_at_all_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0"]) == 2

    assert "at least 1" in capsys.readouterr().err


def test_an_unknown_pipeline_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--shape", "triangle"])

    assert error.value.code == 2
    assert "triangle" in capsys.readouterr().err


def test_the_demo_shows_an_aligned_and_an_overtaking_barrier(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--demo"]) == 0

    printed = capsys.readouterr().out
    assert "1. Aligned" in printed
    assert "UNALIGNED" in printed
    assert printed.count("Verdict:") == 2

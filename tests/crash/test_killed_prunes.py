"""A prune killed right before or after any of its writes and deletes: the next one finishes it."""

import json
import signal
from pathlib import Path

from tests.cli.command import command, run_to_end

DEADLINE_S = 120


def test_a_prune_killed_anywhere_loses_nothing_and_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    words = command(str(tmp_path), program="tests.crash.pruner")
    done = run_to_end(words, deadline_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    # Lease, claim, two cuts given up, two manifests, their objects, lease.
    assert len(found["runs"]) > 10
    assert found["before"]["sound"] == [2, 3]
    assert found["whole"]["sound"] == found["whole"]["manifests"] == [3]
    assert len(found["whole"]["objects"]) == 3
    for ended, left, finished, after in found["runs"]:
        assert ended == signal.SIGKILL
        # What stays is whole at every moment, and so is whatever still has its manifest.
        assert 3 in left["sound"]
        assert set(left["manifests"]) - {1} == set(left["sound"])
        assert finished == 0
        assert after == found["whole"]

"""Drivers killed while a table shows batches before their checkpoint (rule F33).

In between readers may see rows that are revised; in the end the table is exact.
"""

from pathlib import Path

from tests.crash.drivers import Drivers
from tests.crash.killing import Killing
from tests.crash.pipeline_state import PipelineState, rows_of

from cutwater.ids import SinkId

SINK = SinkId("table")


def test_rows_seen_early_are_taken_back_and_come_again(drivers: Drivers, tmp_path: Path) -> None:
    table = tmp_path / "tables" / "numbers"
    given = {"rate": "1500", "table": str(table), "visibility": "batch"}
    straight = Killing(drivers, tmp_path, "straight", given, interval="2s")

    def numbers(version: str | None = None) -> int:
        """How many numbers are seen, each once and none left out."""
        found = rows_of(table, version, "value", "seven")
        assert found == [(number, number * 7) for number in range(len(found))]
        return len(found)

    def committed(state: PipelineState) -> int:
        return numbers(state.commits[-1].versions[SINK])

    shown = straight.dies_at("later show", 3)
    early = numbers()
    revised = straight.dies_at("take back")
    taken_back = numbers()
    straight.dies_at("seal", 2)
    straight.is_paused()
    total = straight.finish()

    # More was seen than any checkpoint held; the next driver took it back, and nothing else.
    assert 0 < committed(shown) < early
    assert taken_back == committed(revised)
    assert numbers() == total
    # What was recorded for each checkpoint is what its cut holds.
    offsets = {cut.checkpoint_id: cut.stream_positions for cut in straight.states[-1].cuts}
    for commit in straight.states[-1].commits:
        if commit.versions[SINK] != "none":
            (offset,) = offsets[commit.checkpoint_id].values()
            assert f'"sequence":{numbers(commit.versions[SINK])}' in offset.replace(" ", "")

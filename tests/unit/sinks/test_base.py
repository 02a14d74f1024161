"""Whether executors see the driver's disk, judged by the master alone."""

import pytest

from cutwater.sinks.base import is_one_machine, share_disk


@pytest.mark.parametrize(
    ("master", "shared"),
    [
        ("local", True),
        ("local[3]", True),
        ("local[2, 4]", True),
        ("local-cluster[2,1,1024]", True),
        ("local-thing", False),
        ("localhost:7077", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_executors_on_the_drivers_machine_see_its_disk(master: str, shared: bool) -> None:
    assert is_one_machine(master) is shared


def test_a_process_without_executors_shares_its_disk_with_no_other() -> None:
    assert share_disk(None)

"""The files of a state store, as its own snapshots name them."""

import zipfile
from pathlib import Path

import pytest

from cutwater.errors import RecoveryError
from cutwater.spark.checkpoint_dir.state_files import find_rocksdb_files


def snapshot(store: Path, name: str) -> None:
    text = f'v1\n{{"sstFiles":[{{"localSstName":"1.sst","dfsSstFileName":"{name}"}}]}}'
    with zipfile.ZipFile(store / "1.zip", "w") as archive:
        archive.writestr("metadata", text)


def test_a_snapshot_names_the_files_that_it_shares(tmp_path: Path) -> None:
    (tmp_path / "SSTs").mkdir()
    (tmp_path / "SSTs" / "1-x.sst").write_text("")
    snapshot(tmp_path, "1-x.sst")

    assert list(find_rocksdb_files(tmp_path, {"1.zip"}, 1)) == ["1.zip", "SSTs/1-x.sst"]


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", ""])
def test_a_snapshot_that_names_a_file_outside_its_store_is_refused(
    tmp_path: Path, name: str
) -> None:
    store = tmp_path / "a" / "b"
    (store / "SSTs").mkdir(parents=True)
    (tmp_path / "a" / "secret").write_text("")
    snapshot(store, name)

    with pytest.raises(RecoveryError, match="which is no file of it"):
        list(find_rocksdb_files(store, {"1.zip"}, 1))

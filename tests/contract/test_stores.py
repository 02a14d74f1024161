"""The contract of the store port, over every backend there is."""

import uuid
from pathlib import Path

import pytest
from tests.contract.store_contract import StoreContract
from tests.servers.s3 import S3Server

from cutwater.errors import Conflict
from cutwater.store.backends.backend import Backend
from cutwater.store.backends.local import LocalBackend
from cutwater.store.backends.location import backend_at
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath


class TestMemory(StoreContract):
    """Objects in a dictionary."""

    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


class TestLocal(StoreContract):
    """Objects as files."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return LocalBackend(tmp_path / "store")


class TestS3(StoreContract):
    """Objects in a bucket, behind a real S3 server."""

    @pytest.fixture
    def backend(self, s3: S3Server) -> Backend:
        return backend_at(s3.url(uuid.uuid4().hex))


@pytest.fixture(params=["memory", "local"])
def strict(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """The backends that notice a path which is an object and a prefix at once."""
    return MemoryBackend() if request.param == "memory" else LocalBackend(tmp_path / "store")


@pytest.mark.parametrize("below", ["a/b/c", "a/b/c/d"])
def test_nothing_is_written_below_an_object(strict: Backend, tmp_path: Path, below: str) -> None:
    strict.create(ObjectPath("a/b"), b"one")
    (tmp_path / "file").write_bytes(b"two")

    with pytest.raises(Conflict, match=below):
        strict.create(ObjectPath(below), b"two")
    with pytest.raises(Conflict, match=below):
        strict.put(ObjectPath(below), b"two")
    with pytest.raises(Conflict, match=below):
        strict.put_file(ObjectPath(below), tmp_path / "file")
    assert strict.list(ObjectPath("a")) == ("a/b",)


def test_no_object_takes_the_place_of_others(strict: Backend) -> None:
    strict.create(ObjectPath("a/b/c"), b"one")

    with pytest.raises(Conflict, match="a/b"):
        strict.create(ObjectPath("a/b"), b"two")
    with pytest.raises(Conflict, match="a/b"):
        strict.put(ObjectPath("a/b"), b"two")
    assert strict.read(ObjectPath("a/b/c")) == b"one"

"""Blobs over a real S3 server: several at once, sent again when an answer is lost, all checked."""

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.gateway import Gateway, Request, answer, gateway_to, hang_up, lose_the_answer
from tests.servers.s3 import S3Server
from tests.trees import stored_tree

from cutwater.errors import Corrupt
from cutwater.ids import Generation, PipelineId
from cutwater.store.backends.backend import AT_ONCE, Backend
from cutwater.store.backends.location import backend_at
from cutwater.store.blobs.blobs import BUNDLED_BYTES_MAX, Blobs
from cutwater.store.blobs.local_cache import BlobCache, LeftFiles
from cutwater.store.paths import ObjectPath

PIPELINE = PipelineId("0b9c4a52-6f0e-4d7c-9a53-2f3f4c1d8e77")


@pytest.fixture
def gateway(s3: S3Server) -> Iterator[Gateway]:
    with gateway_to(s3.port) as gateway:
        yield gateway


@pytest.fixture
def backend(s3: S3Server, gateway: Gateway) -> Backend:
    return backend_at(s3.url(uuid.uuid4().hex, gateway.endpoint))


@pytest.fixture
def blobs(backend: Backend) -> Blobs:
    return Blobs(backend, PIPELINE, Generation(1))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A snapshot's files: many small ones, a dozen big ones, one that is sent in parts."""
    root = tmp_path / "tree"
    (root / "state" / "0").mkdir(parents=True)
    for number in range(12):
        (root / f"small-{number}").write_bytes(os.urandom(100 * number))
        (root / "state" / "0" / f"{number}.sst").write_bytes(os.urandom(BUNDLED_BYTES_MAX))
    (root / "state" / "huge.zip").write_bytes(os.urandom(9 * BUNDLED_BYTES_MAX))
    return root


def files_of(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def test_a_tree_comes_back_although_answers_are_lost_on_the_way(
    blobs: Blobs, gateway: Gateway, tree: Path, tmp_path: Path
) -> None:
    gateway.harm("PUT", hang_up, lose_the_answer, answer(503), answer(500))
    gateway.harm("POST", answer(503))
    gateway.harm("GET", hang_up, answer(503))
    gateway.harm("HEAD", answer(503))

    refs = stored_tree(blobs, tree, {})
    blobs.fetch_tree(refs, tmp_path / "copy")

    assert files_of(tmp_path / "copy") == files_of(tree)
    assert len(refs) == 14
    assert [blobs.problem(ref) for ref in refs] == [None] * 14


def test_blobs_are_sent_several_at_once_and_not_too_many(
    blobs: Blobs, gateway: Gateway, tree: Path
) -> None:
    together = threading.Barrier(AT_ONCE)
    guard, now, most = threading.Lock(), 0, 0

    def counted(request: Request) -> bool:
        nonlocal now, most
        with guard:
            now += 1
            most = max(most, now)
        if request.method == "PUT" and "uploadId" not in request.path and not together.broken:
            # All that may be on their way at once meet here; fewer would wait in vain.
            try:
                together.wait(15)
            except threading.BrokenBarrierError:
                together.abort()
        with guard:
            now -= 1
        return True

    gateway.always = counted
    blobs.store_files([tree / "state" / "0" / f"{number}.sst" for number in range(8)], {})

    assert most == AT_ONCE
    assert not together.broken


def flip(backend: Backend, path: ObjectPath) -> None:
    data = backend.read(path)
    backend.put(path, bytes([data[0] ^ 1]) + data[1:])


def truncate(backend: Backend, path: ObjectPath) -> None:
    backend.put(path, backend.read(path)[:-1])


def test_damaged_blobs_are_named_and_never_believed(backend: Backend, tree: Path) -> None:
    blobs = Blobs(backend, PIPELINE, Generation(1))
    bundle, flipped, truncated, deleted, *_ = refs = stored_tree(blobs, tree, {})
    flip(backend, ObjectPath(flipped.name))
    truncate(backend, ObjectPath(truncated.name))
    backend.delete(ObjectPath(deleted.name))

    problems = BlobCache(tree.parent / "cache", LeftFiles()).problems(blobs, [refs], ())

    assert set(problems) == {flipped, truncated, deleted}
    assert "its hash is" in problems[flipped]
    assert "bytes, and" in problems[truncated]
    assert "is missing" in problems[deleted]
    for bad in problems:
        with pytest.raises(Corrupt, match=bad.name):
            blobs.fetch_file(bad, tree.parent / "copy")
    flip(backend, ObjectPath(bundle.name))
    with pytest.raises(Corrupt, match=bundle.name):
        blobs.fetch_tree(refs, tree.parent / "tree-copy")

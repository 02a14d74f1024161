"""A pipeline whose store is a bucket is looked at, pruned and asked like one on disk."""

import os
import socket
import time
import uuid
from pathlib import Path

import pytest
from tests.cli.offline_store import OfflineStore
from tests.servers.s3 import S3Server
from tests.unit.runtime.fake_run_control import FakeRunControl

from cutwater.protocol.checkpoint.attempt import CheckpointRequest
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.request_server import RequestServer
from cutwater.store.records.lease import Lease


@pytest.fixture
def stored(s3: S3Server, tmp_path: Path) -> OfflineStore:
    found = OfflineStore(tmp_path, s3.url(uuid.uuid4().hex))
    found.writer.decide(1)
    found.writer.decide(2, CheckpointKind.SAVEPOINT, name="before")
    found.writer.decide(3)
    return found


def test_checkpoints_in_a_bucket_are_listed_checked_and_pruned(stored: OfflineStore) -> None:
    before = stored.json("checkpoints", "list", "orders")["checkpoints"]
    pruned = stored.json("checkpoints", "prune", "orders", "--keep", "1", "--yes")
    after = stored.json("checkpoints", "list", "orders")["checkpoints"]

    assert [entry["id"] for entry in before] == [1, 2, 3]
    assert pruned["checkpoints"] == [1]
    assert [entry["id"] for entry in after] == [2, 3]
    assert stored.json("checkpoints", "verify", "orders", "--all")["sound"] is True
    stored.backend.delete(stored.writer.blob("orders 2").name)  # type: ignore[arg-type]
    assert stored.run("checkpoints", "verify", "orders", "before").exit_code == 1
    assert "has no 'other'; it has orders" in stored.run("checkpoints", "list", "other").stderr


def test_a_pipeline_is_asked_through_a_bucket(
    stored: OfflineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.runtime.request_server.LOOK_MS", 100)
    lease = Lease(socket.gethostname(), os.getppid(), "nonce", int(time.time() * 1000))
    stored.hold(lease)
    control = FakeRunControl()
    desk = RequestServer(stored.writer.store, lease.nonce, control)
    desk.start()

    taken = stored.json("savepoint", "orders", "--name", "after")["checkpoint"]
    desk.close()

    assert control.requested == [CheckpointRequest(CheckpointKind.SAVEPOINT, "after")]
    assert (taken["name"], taken["status"]) == ("after", "COMPLETED")
    assert stored.writer.store.requests.tokens() == ()

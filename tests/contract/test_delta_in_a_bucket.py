"""A Delta table in a bucket of a real S3 server: staged, committed, upserted and restored there.

The table is read through obstore and pyarrow, by this file's own reading of the log.
"""

import hashlib
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.store import ObjectStore
from pyspark.sql.types import StructField, StructType
from tests.contract.bucket_table import bucket_at, names_in, rows_in
from tests.contract.delta_rows import TYPES, ArrowRows
from tests.servers.gateway import gateway_to, refuse_large_copies
from tests.servers.s3 import CREDENTIALS, S3Server

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import KeepsPast, OpenSink, SinkContext
from cutwater.sinks.delta import storage_s3 as delta_bucket
from cutwater.sinks.delta.merge import JOINED_MIN
from cutwater.sinks.delta.storage_s3 import BucketStaging, BucketStorage
from cutwater.sinks.delta.target import DeltaTarget, reopen_delta
from cutwater.store.backends.location import Location

CONTEXT = SinkContext(None, PipelineId("0b6f6a2e-9a3c-4a57-9a0e-5b8f2f3f2a10"), SinkId("totals"))


@pytest.fixture
def url(s3: S3Server, request: pytest.FixtureRequest) -> str:
    return s3.url(f"tables/{request.node.name[:40].strip('[]')}")


@pytest.fixture
def bucket(url: str) -> ObjectStore:
    return bucket_at(url)


def permit(slot: int) -> CommitPermit:
    return grant(CONTEXT.pipeline, Slot(slot), CheckpointId(slot + 100))


def staged(sink: OpenSink, batch: int, *rows: tuple[str | None, int, int]) -> Committable:
    given = [{"k": k, "n": n, "v": v} for k, n, v in rows]
    found = sink.stage(ArrowRows(given, ("k", "n", "v")), Generation(1), BatchId(batch))
    assert found is not None
    return found


def rows_of(bucket: ObjectStore) -> list[tuple[Any, ...]]:
    found = [tuple(row.get(name) for name in TYPES if name != "x") for row in rows_in(bucket)]
    return sorted(found, key=repr)


def upserting(url: str) -> DeltaTarget:
    return sinks.delta(url, write="upsert", keys=["k", "n"], partition_by=["k"])


def test_rows_are_staged_committed_and_replaced_in_a_bucket(url: str, bucket: ObjectStore) -> None:
    sink = upserting(url).open(CONTEXT)
    first = staged(sink, 0, ("a", 1, 1), ("ü/%=", 1, 1), (None, 1, 1))
    assert sorted(names_in(bucket)) != []
    assert not [name for name in names_in(bucket) if not name.startswith("_cutwater/")]
    assert sink.problem(first) is None

    assert sink.commit(permit(1), [first]) == "1"
    later = [staged(sink, 1, ("ü/%=", 1, 2)), staged(sink, 2, (None, 1, 3), ("b", 1, 3))]
    assert sink.commit(permit(2), later) == "2"

    assert rows_of(bucket) == [("a", 1, 1), ("b", 1, 3), ("ü/%=", 1, 2), (None, 1, 3)]
    # A sink reopened from the store's record finds the same, and the record has no secret.
    stored = upserting(url).stored()
    assert not any(secret in str(stored) for secret in CREDENTIALS.values())
    again = reopen_delta(stored, CONTEXT)
    assert [again.commit(permit(1), [first]), again.commit(permit(2), later)] == ["1", "2"]
    assert again.look_back("1").rows_then == 3
    again.restore(permit(3), "1")
    assert rows_of(bucket) == [("a", 1, 1), ("ü/%=", 1, 1), (None, 1, 1)]


def test_others_may_write_to_a_table_in_a_bucket(url: str, bucket: ObjectStore) -> None:
    sink = upserting(url).open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1), ("b c", 1, 1))])
    waiting = staged(sink, 1, ("a", 1, 2), ("b c", 1, 2))
    root = BucketStorage(Location.of(url))
    rows = pa.table({"k": ["a", "b c", "z"], "n": [1, 1, 1], "v": [7, 8, 9]})
    write_deltalake(
        root.address, rows, mode="append", partition_by=["k"], storage_options=root.options
    )
    DeltaTable(root.address, storage_options=root.options).optimize.compact()

    sink.commit(permit(2), [waiting])

    assert rows_of(bucket) == [("a", 1, 2), ("b c", 1, 2), ("z", 1, 9)]


def test_small_files_are_joined_and_a_lost_one_is_never_committed(
    url: str, bucket: ObjectStore
) -> None:
    sink = sinks.delta(url).open(CONTEXT)
    sink.commit(
        permit(1), [staged(sink, number, ("a", number, number)) for number in range(JOINED_MIN)]
    )
    assert len(rows_of(bucket)) == JOINED_MIN
    lost, kept = staged(sink, 50, ("b", 1, 1)), staged(sink, 51, ("b", 2, 2))
    obstore.delete(bucket, lost.blobs[-1].name)

    assert sink.problem(lost) == f"{lost.blobs[-1].name} is missing"
    with pytest.raises(SinkError, match="gone or not what was staged"):
        sink.commit(permit(2), [lost])
    sink.discard(Generation(2), [kept])

    assert sink.problem(kept) is None
    left = {name for name in names_in(bucket) if name.startswith("_cutwater/")}
    assert left == {blob.name for blob in kept.blobs}


def test_a_file_that_is_too_large_for_one_copy_request_gets_its_last_name(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_bucket, "COPY_BYTES_MAX", 100)
    with gateway_to(s3.port) as gateway:
        # deltalake would not let the gateway's thread run, so files are settled without it.
        gateway.always = refuse_large_copies(100)
        root = BucketStorage(Location.of(s3.url("tables/large", gateway.endpoint)))
        staging = BucketStaging(root, CONTEXT.pipeline, CONTEXT.sink)
        rows = ArrowRows([{"k": "a", "n": 1, "v": 1}], ("k", "n", "v"))
        _, (blob,) = staging.write(rows, (Generation(1), BatchId(0)), ())
        assert blob.size_bytes > 100

        settled = staging.settle([blob])

    assert root_hash(s3, settled[blob]) == blob.sha256


def root_hash(s3: S3Server, name: str) -> str:
    content = obstore.get(bucket_at(s3.url("tables/large")), name).bytes()
    return hashlib.sha256(bytes(content)).hexdigest()


def test_a_table_in_a_bucket_is_looked_at_while_planning(
    s3: S3Server, url: str, bucket: ObjectStore
) -> None:
    target = sinks.delta(url)
    rows = StructType([StructField(name, TYPES[name]) for name in ("k", "n")])
    assert target.check_target(SinkId("totals"), rows) is None
    assert names_in(bucket) == []

    sink = target.open(CONTEXT)
    sink.commit(permit(1), [staged(sink, 0, ("a", 1, 1))])
    other = StructType([StructField("k", TYPES["n"])])
    reason = target.check_target(SinkId("totals"), other)

    assert target.check_target(SinkId("totals"), rows) is None
    assert reason is not None
    assert reason.startswith("column k is string in the table and bigint in the new rows")
    away = sinks.delta(s3.url("tables/away", "http://127.0.0.1:1"))
    with pytest.raises(SinkError, match="sink totals: s3://"):
        away.check_target(SinkId("totals"), None)


def test_an_address_with_a_secret_or_without_a_prefix_is_refused(s3: S3Server) -> None:
    del s3
    for uri in ("s3://key:secret@bucket/table", "s3://bucket", "s3://bucket/t?key=secret"):
        with pytest.raises(ConfigError) as caught:
            sinks.delta(uri)
        assert caught.value.option == "uri"
        assert "secret" not in str(caught.value)


def test_staged_objects_stay_while_a_checkpoint_carries_them_and_go_with_it(
    url: str, bucket: ObjectStore
) -> None:
    sink = sinks.delta(url).open(CONTEXT)
    assert isinstance(sink, KeepsPast)
    carried, later = staged(sink, 0, ("a", 1, 1)), staged(sink, 1, ("b", 1, 1))
    waiting = staged(sink, 2, ("c", 1, 1))
    sink.commit(permit(1), [carried, later])

    def staged_objects() -> set[str]:
        return {name for name in names_in(bucket) if name.startswith("_cutwater/")}

    sink.retain(Generation(1), {None}, [carried])
    assert staged_objects() == {
        blob.name for committable in (carried, waiting) for blob in committable.blobs
    }
    # A newer process has never seen the commit; what it was told to keep it deletes in the end.
    newer = sinks.delta(url).open(CONTEXT)
    assert isinstance(newer, KeepsPast)
    newer.discard(Generation(2), [carried, waiting])
    newer.retain(Generation(2), {"1"}, [waiting])

    assert staged_objects() == {blob.name for blob in waiting.blobs}
    newer.commit(permit(2), [waiting])
    assert rows_of(bucket) == [("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]

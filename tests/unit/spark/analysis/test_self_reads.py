"""Two paths that name the same files, however they are written (rule F40)."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cutwater import Pipeline, sinks
from cutwater.errors import ConfigError
from cutwater.pipeline.nodes import SinkTarget
from cutwater.planning.planner import plan
from cutwater.sinks.files.target import FilesTarget
from cutwater.spark.analysis.self_reads import SelfReadCheck

S3 = "s3://lake/clean/orders"
SERVER, DEFAULT = "fs.s3a.endpoint", "fs.defaultFS"
ENDPOINT = "http://127.0.0.1:9000"


def own(
    target: SinkTarget,
    settings: Mapping[str, str] | None = None,
    catalog: Mapping[str, Path] | None = None,
) -> SelfReadCheck:
    """Where a pipeline with one sink writes, seen from a session with these settings."""
    pipeline = Pipeline("own")
    pipeline.source(lambda spark: spark, name="rows")
    pipeline.sink("t", target, of="rows")

    def files_of_table(name: str) -> FilesTarget:
        if catalog is None or name not in catalog:
            raise ConfigError("name", f"the catalog cannot describe {name}")
        return FilesTarget(str(catalog[name]))

    return SelfReadCheck(plan(pipeline), (settings or {}).get, files_of_table)


def is_own(written: SelfReadCheck, read: str) -> bool:
    return written.writer_of(read) is not None


@pytest.mark.parametrize(
    "read",
    ["{t}", "{t}/", "file:{t}", "file://{t}", "file:///{t}/", "{t}/day=1", "{up}/link", "{up}/*"],
)
@pytest.mark.parametrize("sink", [sinks.delta, sinks.files], ids=["delta", "files"])
def test_a_directory_is_known_however_it_is_written(
    tmp_path: Path, read: str, sink: Callable[[str], SinkTarget]
) -> None:
    table = tmp_path / "table [1]"
    table.mkdir()
    (tmp_path / "link").symlink_to(table)

    assert is_own(own(sink(str(table))), read.format(t=table, up=tmp_path))


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert is_own(own(sinks.delta("tables/orders")), f"{tmp_path}/tables/orders")
    assert is_own(own(sinks.delta(f"{tmp_path}/tables/orders")), "tables/orders")
    assert is_own(own(sinks.delta(f"{tmp_path}/link/../orders")), os.path.realpath("orders"))


@pytest.mark.parametrize("read", ["{t}2", "{t}2/part", "{up}", "/{name}", "s3a://lake{t}"])
def test_what_lies_beside_or_above_is_not_the_sinks_own(tmp_path: Path, read: str) -> None:
    table = tmp_path / "table"

    found = read.format(t=table, up=tmp_path, name=table.name)

    assert not is_own(own(sinks.delta(str(table))), found)


@pytest.mark.parametrize("read", [S3, "s3a://lake/clean/orders/", "s3n://lake/clean/orders/day=1"])
def test_a_bucket_is_known_by_all_names_of_its_scheme(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)

    assert is_own(own(sinks.delta(S3)), read)
    assert is_own(own(sinks.delta(S3), {SERVER: "s3.eu-west-1.amazonaws.com"}), read)
    assert not is_own(own(sinks.delta(S3), {SERVER: ENDPOINT}), read)
    assert is_own(own(sinks.delta(f"{S3}?endpoint={ENDPOINT}"), {SERVER: ENDPOINT}), read)


def test_a_bucket_has_a_server_of_its_own() -> None:
    written = sinks.delta(f"{S3}?endpoint={ENDPOINT}")
    settings = {SERVER: "elsewhere:9000", "fs.s3a.bucket.lake.endpoint": ENDPOINT}

    assert is_own(own(written, settings), "s3a://lake/clean/orders")
    assert not is_own(own(written, {SERVER: "elsewhere:9000"}), "s3a://lake/clean/orders")


def test_a_path_without_a_scheme_is_on_the_file_system_of_the_session(tmp_path: Path) -> None:
    written = sinks.delta(str(tmp_path))

    assert is_own(own(written, {DEFAULT: "file:///"}), str(tmp_path))
    assert not is_own(own(written, {DEFAULT: "hdfs://name:8020"}), str(tmp_path))
    assert is_own(own(written, {DEFAULT: "hdfs://name:8020"}), f"file:{tmp_path}")


def test_a_table_of_the_catalog_is_where_the_catalog_says(tmp_path: Path) -> None:
    known = {"shop.orders": tmp_path / "warehouse" / "orders"}

    assert is_own(
        own(sinks.table("shop.orders"), catalog=known), f"file:{tmp_path}/warehouse/orders"
    )
    assert not is_own(
        own(sinks.table("shop.others"), catalog=known), f"{tmp_path}/warehouse/orders"
    )


def test_a_sink_without_files_of_rows_is_never_read(tmp_path: Path) -> None:
    handed = sinks.foreach_batch(lambda *_: None, staging=str(tmp_path))

    assert not is_own(own(handed), str(tmp_path))
    assert not is_own(own(sinks.console()), str(tmp_path.cwd()))

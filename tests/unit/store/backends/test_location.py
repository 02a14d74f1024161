"""Addresses of stores: what is accepted, what is refused, and that secrets are not repeated."""

import sys
from pathlib import Path

import pytest

from cutwater.errors import ConfigError
from cutwater.store.backends import location
from cutwater.store.backends.local import LocalBackend
from cutwater.store.backends.location import Location, backend_at, backend_for_writing
from cutwater.store.backends.object_store import ObjectBackend
from cutwater.store.paths import ObjectPath

A = ObjectPath("a")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("before", ["", "file://", "file://localhost"])
def test_a_directory_is_a_path_or_a_file_address(before: str, tmp_path: Path) -> None:
    backend = backend_at(f"{before}{tmp_path}/store")

    assert isinstance(backend, LocalBackend)
    assert backend.url == (tmp_path / "store").as_uri()


def test_a_path_is_taken_as_it_is_and_an_address_is_unquoted(tmp_path: Path) -> None:
    odd = tmp_path / "a b?c%20"

    assert Location.of(odd).directory == odd
    assert Location.of(str(odd)).directory == odd
    assert Location.of(odd.as_uri()).directory == odd


def test_a_store_in_memory_is_found_again_by_its_name() -> None:
    backend_at("memory://one").create(A, b"1")

    assert backend_at("memory://one").read(A) == b"1"
    assert not backend_at("memory://other").exists(A)
    assert Location.of("memory://one").directory is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket", ("s3", "bucket", "", {})),
        ("s3://bucket/", ("s3", "bucket", "", {})),
        ("s3a://bucket/a/b/", ("s3", "bucket", "a/b", {})),
        ("s3://bucket/a%20b?region=eu-west-1", ("s3", "bucket", "a b", {"region": "eu-west-1"})),
        (
            "s3://bucket/a?endpoint=http://host:9000",
            ("s3", "bucket", "a", {"aws_endpoint_url_s3": "http://host:9000"}),
        ),
        ("gs://bucket/a", ("gs", "bucket", "a", {})),
        ("gs://bucket/a?endpoint=http://h", ("gs", "bucket", "a", {"base_url": "http://h"})),
        ("az://box/a?account=me", ("az", "box", "a", {"account_name": "me"})),
        (
            "abfss://box@me.dfs.core.windows.net/a/b",
            ("az", "box", "a/b", {"account_name": "me"}),
        ),
    ],
)
def test_a_bucket_is_read_from_its_address(
    address: str, expected: tuple[str, str, str, dict[str, str]]
) -> None:
    found = Location.of(address)

    assert (found.kind, found.bucket, found.path, dict(found.options)) == expected
    assert found.text == address


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/a?endpoint=http://127.0.0.1:9",
        "s3://bucket/a?endpoint=https://example.invalid",
        "gs://bucket/a",
        "az://box/a?account=me",
        "abfss://box@me.dfs.core.windows.net/a",
    ],
)
def test_a_bucket_is_opened_without_a_request(address: str) -> None:
    backend = backend_at(address)

    assert isinstance(backend, ObjectBackend)
    assert backend.url == address.partition("?")[0]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_may_be_in_the_environment_and_the_address_wins(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://there")

    from_environment = Location.of("s3://bucket")
    from_address = Location.of("s3://bucket?endpoint=http://here")

    assert list(from_environment.options.values()) == ["http://there"]
    assert list(from_address.options.values()) == ["http://here"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "is empty; it may be a directory"),
        ("  ", "is empty"),
        ("ftp://host/x", "'ftp://host/x' is no place for a store; it may be a directory, file"),
        ("file://host/x", "no place for a store"),
        ("file://", "no place for a store"),
        ("http://host/x", "no place for a store"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket?regoin=x", r"option 'regoin'; s3:// knows \?endpoint= and \?region="),
        ("gs://bucket?region=x", r"option 'region'; gs:// knows \?endpoint=,"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_one(address: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        backend_at(address)


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:hidden@bucket/a",
        "s3://hidden@bucket",
        "az://box:hidden@account/a",
        "s3://bucket/a?secret_access_key=hidden",
        "az://box/a?sas_token=hidden",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="environment") as refused:
        Location.of(address)

    assert "hidden" not in str(refused.value)


def test_a_bucket_that_obstore_cannot_open_is_a_wrong_option() -> None:
    with pytest.raises(ConfigError, match=r"az://box/a cannot be opened: .*[Aa]ccount"):
        backend_at("az://box/a")


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"pip install 'cutwater\[objects\]'"):
        Location.of("s3://bucket", "--store")


def test_a_directory_needs_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)

    assert backend_at(tmp_path).create(A, b"1")


def test_a_store_is_cleaned_and_tried_before_it_is_written_to(tmp_path: Path) -> None:
    (tmp_path / ".incoming").mkdir()
    (tmp_path / ".incoming" / "left").write_bytes(b"half")

    directory = backend_for_writing(tmp_path)
    memory = backend_for_writing("memory://tried")

    assert not list((tmp_path / ".incoming").iterdir())
    assert directory.list(ObjectPath("probes")) == memory.list(ObjectPath("probes")) == ()

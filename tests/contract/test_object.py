"""What is special about an object store: the network before it, and what can be lost on it.

Every request goes over real sockets to a real S3 server, through a gateway that does harm.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.servers.gateway import (
    Gateway,
    Request,
    answer,
    gateway_to,
    hang_up,
    ignore_conditions,
    lose_the_answer,
    wait_for,
)
from tests.servers.s3 import BUCKET, S3Server, s3_server

from cutwater.errors import ConfigError, NotFound, OutcomeUnknown, StoreError, Unavailable
from cutwater.store.backends.backend import Backend
from cutwater.store.backends.location import Location, probe
from cutwater.store.backends.object_store import PART_BYTES, ObjectBackend, RequestLimits
from cutwater.store.paths import ObjectPath

A = ObjectPath("a/b")
QUICK = RequestLimits(connect_s=10, request_s=60, tries=4, pause_s=0.01, pause_max_s=0.02)
"""Retries at once. A slow server is waited for: the machine may be busy."""
CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again.</Message></Error>"


def opened(url: str, limits: RequestLimits = QUICK) -> ObjectBackend:
    return ObjectBackend(url.partition("?")[0], Location.of(url).opener(), limits)


@pytest.fixture
def gateway(s3: S3Server) -> Iterator[Gateway]:
    with gateway_to(s3.port) as gateway:
        yield gateway


@pytest.fixture
def url(s3: S3Server, gateway: Gateway) -> str:
    """A store of its own behind the gateway."""
    return s3.url(uuid.uuid4().hex, gateway.endpoint)


@pytest.fixture
def backend(url: str) -> ObjectBackend:
    return opened(url)


@pytest.fixture
def beside(s3: S3Server, url: str) -> ObjectBackend:
    """The same store without the gateway: what is really there."""
    return opened(s3.url(url.partition("?")[0].removeprefix(f"s3://{BUCKET}/")))


CALLS: dict[str, Callable[[Backend, Path], object]] = {
    "create": lambda backend, _: backend.create(A, b"one"),
    "put": lambda backend, _: backend.put(A, b"one"),
    "put_file": lambda backend, local_file: backend.put_file(A, local_file),
    "delete": lambda backend, _: backend.delete(A),
    "read": lambda backend, _: backend.read(A),
    "read_to_file": lambda backend, local_file: backend.read_to_file(A, local_file),
    "exists": lambda backend, _: backend.exists(A),
    "size": lambda backend, _: backend.size(A),
    "list": lambda backend, _: backend.list(A),
}
WRITES = ["create", "put", "put_file", "delete"]
READS = [name for name in CALLS if name not in WRITES]


@pytest.fixture(params=[9, PART_BYTES + 1], ids=["small", "big"])
def local_file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    local_file = tmp_path / "file"
    local_file.write_bytes(b"x" * request.param)
    return local_file


# -- a create whose answer is lost


def test_a_create_whose_answer_is_lost_is_not_called_absent(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway
) -> None:
    gateway.harm("PUT", lose_the_answer)

    with pytest.raises(OutcomeUnknown, match="may be ours"):
        backend.create(A, b"one")
    assert beside.read(A) == b"one"


def test_a_create_without_an_answer_has_an_unknown_outcome(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway
) -> None:
    gateway.harm("PUT", *[hang_up] * QUICK.tries)

    with pytest.raises(OutcomeUnknown, match=A):
        backend.create(A, b"one")
    assert not beside.exists(A)


def test_a_create_that_did_not_arrive_is_sent_again_and_wins(
    backend: ObjectBackend, gateway: Gateway
) -> None:
    gateway.harm("PUT", hang_up, answer(500), answer(503))

    assert backend.create(A, b"one")
    assert len(gateway.seen) == QUICK.tries


def test_a_create_that_lost_a_race_before_its_retry_has_an_unknown_outcome(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway
) -> None:
    def another_wins(request: Request) -> bool:
        beside.create(A, b"other")
        return hang_up(request)

    gateway.harm("PUT", another_wins)

    with pytest.raises(OutcomeUnknown):
        backend.create(A, b"one")
    assert beside.read(A) == b"other"


# -- a create that others disturb


def test_a_create_that_is_put_off_for_another_request_is_sent_again(
    backend: ObjectBackend, gateway: Gateway
) -> None:
    gateway.harm("PUT", answer(409, CONFLICT), answer(429))

    assert backend.create(A, b"one")


def test_a_create_that_is_put_off_is_refused_if_the_object_is_there(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway
) -> None:
    beside.create(A, b"other")
    gateway.harm("PUT", answer(409, CONFLICT))

    assert not backend.create(A, b"one")


def test_a_create_that_is_put_off_for_ever_was_certainly_not_written(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway
) -> None:
    gateway.harm("PUT", *[answer(409, CONFLICT)] * QUICK.tries)
    gateway.harm("HEAD", *[answer(503)] * QUICK.tries)

    with pytest.raises(Unavailable, match="ConditionalRequestConflict: Try again"):
        backend.create(A, b"one")
    assert not beside.exists(A)


# -- a server that does not answer


@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_an_answer_is_of_unknown_outcome(
    backend: ObjectBackend, gateway: Gateway, local_file: Path, name: str
) -> None:
    gateway.always = hang_up

    with pytest.raises(OutcomeUnknown, match=A):
        CALLS[name](backend, local_file)


@pytest.mark.parametrize("name", READS)
def test_a_read_without_an_answer_changed_nothing(
    backend: ObjectBackend, gateway: Gateway, tmp_path: Path, name: str
) -> None:
    gateway.always = hang_up

    with pytest.raises(Unavailable, match=A):
        CALLS[name](backend, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", CALLS)
def test_one_lost_answer_is_not_noticed_where_a_request_may_be_repeated(
    backend: ObjectBackend, gateway: Gateway, tmp_path: Path, name: str
) -> None:
    local_file = tmp_path / "file"
    local_file.write_bytes(b"x")
    if name != "create":
        backend.put(A, b"one")
    for method in ("GET", "HEAD", "POST", "PUT"):
        gateway.harm(method, hang_up)

    CALLS[name](backend, local_file)


def test_a_server_that_hangs_is_left_after_a_while(url: str, gateway: Gateway) -> None:
    over = threading.Event()
    gateway.always = wait_for(over)
    backend = opened(url, RequestLimits(request_s=0.2, tries=100, pause_s=0.05, total_s=0.4))
    began = time.monotonic()

    with pytest.raises(Unavailable):
        backend.read(A)
    took_s = time.monotonic() - began
    over.set()

    # There would be no answer for half a minute.
    assert 0.2 <= took_s < 20


# -- a server that is not there


def test_a_server_that_was_killed_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (PART_BYTES + 1))
    with s3_server() as server:
        backend = opened(server.url("store"))
        backend.create(A, b"one")
        server.kill()
        failed = [_failure(backend, call, tmp_path / "file") for call in CALLS.values()]
        server.start()

        assert failed == [Unavailable] * len(CALLS)
        assert backend.create(A, b"two")
        assert backend.read(A) == b"two"


def test_a_create_waits_for_a_server_that_comes_back() -> None:
    with s3_server() as server:
        backend = opened(
            server.url("store"), RequestLimits(tries=2000, pause_s=0.05, pause_max_s=0.05)
        )
        server.kill()
        later = threading.Timer(0.2, server.start)
        later.start()

        # The server may be back before its bucket is.
        created = _until(lambda: backend.create(A, b"one"))
        later.join()

        assert created
        assert backend.read(A) == b"one"


def _failure(backend: Backend, call: Callable[[Backend, Path], object], file: Path) -> object:
    try:
        call(backend, file)
    except StoreError as error:
        return type(error)
    return None


def _until(call: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        with suppress(Unavailable):
            return call()
    return False


# -- a bucket that is not there, or not ours


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_called_absent_in_a_bucket_that_is_not_there(
    s3: S3Server, local_file: Path, name: str
) -> None:
    backend = opened(f"s3://missing/store?endpoint={s3.endpoint}")

    with pytest.raises(Unavailable, match="bucket does not exist"):
        CALLS[name](backend, local_file)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_forbidden_is_not_tried_again(
    backend: ObjectBackend, gateway: Gateway, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    body = b"<Error><Code>AccessDenied</Code><Message>Not for you.</Message></Error>"
    gateway.always = answer(403, body)

    with pytest.raises(Unavailable, match=A):
        CALLS[name](backend, tmp_path / "file")
    assert len(gateway.seen) == 1


def test_an_object_that_another_store_does_not_find_is_deleted_already(
    backend: ObjectBackend, gateway: Gateway
) -> None:
    gateway.harm("POST", answer(404, b"<Code>BlobNotFound</Code>"))

    backend.delete(A)


# -- big files


def test_a_big_file_is_sent_in_parts_and_fetched_in_ranges(
    backend: ObjectBackend, gateway: Gateway, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.write_bytes(bytes(range(256)) * (2 * PART_BYTES // 256) + b"the end")
    gateway.harm("PUT", hang_up)

    backend.put_file(A, original)
    backend.read_to_file(A, copy)

    assert copy.read_bytes() == original.read_bytes()
    sent = {text.partition("partNumber=")[2] for text in gateway.seen if "partNumber=" in text}
    assert len(sent) == 3
    assert len([text for text in gateway.seen if text.startswith("GET")]) == 3


def test_a_big_file_is_there_although_the_answer_to_its_completion_was_lost(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    original.write_bytes(b"x" * (PART_BYTES + 1))
    gateway.harm("POST", lambda _: True, lose_the_answer)

    backend.put_file(A, original)

    assert beside.size(A) == PART_BYTES + 1


def test_a_big_file_whose_completion_is_refused_may_have_been_completed_before(
    backend: ObjectBackend, gateway: Gateway, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    original.write_bytes(b"x" * (PART_BYTES + 1))

    def refuse_completions(request: Request) -> bool:
        is_last = request.method == "POST" and "uploadId=" in request.path
        return not is_last or answer(403)(request)

    gateway.always = refuse_completions

    with pytest.raises(OutcomeUnknown, match=A):
        backend.put_file(A, original)


def test_an_object_that_is_replaced_while_it_is_fetched_is_not_mixed(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway, tmp_path: Path
) -> None:
    beside.put(A, b"1" * 2 * PART_BYTES)

    def replace(_: Request) -> bool:
        beside.put(A, b"2" * 2 * PART_BYTES)
        return True

    gateway.harm("GET", lambda _: True, replace)

    with pytest.raises(Unavailable, match="pre-conditions"):
        backend.read_to_file(A, tmp_path / "copy")
    assert not (tmp_path / "copy").read_bytes().count(b"2")


def test_a_big_file_that_cannot_be_read_is_not_the_stores_fault(
    backend: ObjectBackend, beside: ObjectBackend
) -> None:
    # The memory of this process: a file of which one cannot even read the first byte.
    with pytest.raises(OSError, match="Input/output"):
        backend.put_file(A, _Big("/proc/self/mem"))
    assert not beside.exists(A)


class _Big(type(Path())):  # type: ignore[misc]
    """A file that says it is big."""

    def stat(self, *, follow_symlinks: bool = True) -> object:
        assert follow_symlinks

        class Status:
            st_size = PART_BYTES + 1

        return Status


def test_more_calls_than_may_be_sent_at_once_wait_for_each_other(
    backend: ObjectBackend, gateway: Gateway
) -> None:
    guard, now, most = threading.Lock(), 0, 0

    def counted(_: Request) -> bool:
        nonlocal now, most
        with guard:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with guard:
            now -= 1
        return True

    gateway.always = counted
    threads = [
        threading.Thread(target=backend.put, args=(ObjectPath(f"a/{number}"), b"x"))
        for number in range(40)
    ]
    for one in threads:
        one.start()
    for thread in threads:
        thread.join()

    assert 1 < most <= 16
    assert len(backend.list(ObjectPath("a"))) == 40


# -- the probe


def test_the_probe_refuses_a_server_that_ignores_the_condition(
    backend: ObjectBackend, beside: ObjectBackend, gateway: Gateway
) -> None:
    gateway.always = ignore_conditions

    with pytest.raises(ConfigError, match=r"s3://.* does not refuse .*create-if-absent"):
        probe(backend)
    assert beside.list(ObjectPath("probes")) == ()


def test_the_probe_passes_through_a_gateway_that_does_no_harm(backend: ObjectBackend) -> None:
    probe(backend)


def test_an_absent_object_is_distinguished_from_an_absent_bucket_by_one_request(
    backend: ObjectBackend, gateway: Gateway
) -> None:
    with pytest.raises(NotFound):
        backend.read(A)

    assert len(gateway.seen) == 1

"""The address of a running pipeline: found by its store, and only while its process holds it."""

from tests.unit.store.cuts import PIPELINE

from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.lease import Address, Addresses

OURS = Address(holder="ours", url="http://127.0.0.1:4080/", host="here", token_file="/tmp/t")


def test_an_address_is_found_by_the_lease_of_its_process() -> None:
    addresses = Addresses(MemoryBackend(), PIPELINE)
    assert addresses.of("ours") is None

    addresses.tell(OURS)

    assert addresses.of("ours") == OURS
    assert addresses.of("theirs") is None


def test_an_address_that_cannot_be_read_is_none() -> None:
    backend = MemoryBackend()
    backend.put(PipelinePaths(PIPELINE).address, b"not a record")

    assert Addresses(backend, PIPELINE).of("ours") is None

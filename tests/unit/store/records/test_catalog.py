"""The pipelines of a store: one name, one uuid, however many open it at once."""

import uuid

import pytest
from tests.unit.store.faulty import FaultyBackend

from cutwater.errors import ConfigError, Corrupt, NotFound, OutcomeUnknown
from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath, label, name
from cutwater.store.records.catalog import (
    find_pipeline,
    identify,
    list_pipelines,
    open_pipeline,
)
from cutwater.store.records.codecs import LABEL
from cutwater.store.records.envelope import encode


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


def test_a_pipeline_keeps_the_uuid_it_was_given_first(backend: FaultyBackend) -> None:
    first = open_pipeline(backend, "orders")

    assert open_pipeline(backend, "orders") == first
    assert find_pipeline(backend, "orders") == first
    assert str(uuid.UUID(first)) == first


def test_pipelines_of_different_names_have_different_uuids(backend: FaultyBackend) -> None:
    orders, totals = open_pipeline(backend, "orders"), open_pipeline(backend, "Totals/é")

    assert orders != totals
    assert list(list_pipelines(backend).items()) == [("Totals/é", totals), ("orders", orders)]


def test_two_processes_that_open_a_new_name_agree_on_one_uuid(backend: FaultyBackend) -> None:
    rival = uuid.UUID(int=7)
    backend.meanwhile.append(lambda: open_pipeline(backend, "orders", lambda: rival))

    assert open_pipeline(backend, "orders") == str(rival)


def test_a_name_whose_creation_is_in_doubt_is_settled_by_reading_it(
    backend: FaultyBackend,
) -> None:
    backend.after_create.append(OutcomeUnknown(name("orders"), "the answer was lost"))

    assert open_pipeline(backend, "orders", lambda: uuid.UUID(int=7)) == str(uuid.UUID(int=7))
    assert open_pipeline(backend, "orders") == str(uuid.UUID(int=7))


def test_a_name_that_may_still_arrive_is_in_doubt(backend: FaultyBackend) -> None:
    backend.before_create.append(OutcomeUnknown(name("orders"), "the answer was lost"))

    with pytest.raises(OutcomeUnknown):
        open_pipeline(backend, "orders")


def test_a_store_without_pipelines_lists_none(backend: FaultyBackend) -> None:
    assert list_pipelines(backend) == {}


def test_looking_for_a_pipeline_does_not_make_it(backend: FaultyBackend) -> None:
    with pytest.raises(NotFound, match="names/orders"):
        find_pipeline(backend, "orders")
    assert list_pipelines(backend) == {}


def test_a_name_that_was_deleted_leads_to_its_pipeline_again(backend: FaultyBackend) -> None:
    """A new pipeline would read everything from its beginning, into the same tables."""
    orders, other = open_pipeline(backend, "orders"), open_pipeline(backend, "other")
    backend.delete(name("orders"))

    assert find_pipeline(backend, "orders") == orders
    assert list_pipelines(backend) == {"orders": orders, "other": other}
    assert identify(backend, orders) == ("orders", orders)
    assert not backend.exists(name("orders"))
    assert open_pipeline(backend, "orders") == orders
    assert backend.exists(name("orders"))


def test_a_deleted_name_that_several_pipelines_had_is_given_to_none(backend: FaultyBackend) -> None:
    first = open_pipeline(backend, "orders")
    for path in (name("orders"), label(first)):
        backend.delete(path)
    second = open_pipeline(backend, "orders")
    backend.put(label(first), encode(LABEL, label(first), "orders"))
    backend.delete(name("orders"))

    with pytest.raises(Corrupt, match="these pipelines were called so") as found:
        open_pipeline(backend, "orders")
    assert first in found.value.reason
    assert second in found.value.reason


def test_a_pipeline_of_an_older_store_is_remembered_when_it_is_opened(
    backend: FaultyBackend,
) -> None:
    orders = open_pipeline(backend, "orders")
    backend.delete(label(orders))

    assert find_pipeline(backend, "orders") == orders
    assert not backend.exists(label(orders))
    open_pipeline(backend, "orders")

    assert backend.exists(label(orders))


def test_a_name_that_cannot_be_used_is_the_users_to_change(backend: FaultyBackend) -> None:
    with pytest.raises(ConfigError, match="pipeline name"):
        open_pipeline(backend, "")


@pytest.mark.parametrize("path", ["names/orders", "names/orders/copy"])
def test_a_name_whose_record_is_damaged_is_an_error(backend: FaultyBackend, path: str) -> None:
    backend.put(ObjectPath(path), b"torn")

    (found,) = list_pipelines(backend).values()

    assert isinstance(found, Corrupt)
    assert path in str(found)


def test_a_person_names_a_pipeline_by_its_name_or_its_uuid() -> None:
    backend = MemoryBackend()
    pipeline = open_pipeline(backend, "orders")

    assert identify(backend, "orders") == identify(backend, pipeline) == ("orders", pipeline)
    with pytest.raises(ConfigError, match="has no 'order'; it has orders"):
        identify(backend, "order")


def test_the_list_has_all_pipelines_and_says_of_each_what_cannot_be_read() -> None:
    backend = MemoryBackend()
    orders = open_pipeline(backend, "orders")
    torn, nameless, forgotten = (
        open_pipeline(backend, text) for text in ("torn", "nameless", "forgotten")
    )
    backend.put(ObjectPath("names/torn"), b"torn")
    for text in ("nameless", "forgotten"):
        backend.delete(ObjectPath(f"names/{text}"))
    backend.put(ObjectPath(f"labels/{forgotten}"), b"torn")

    found = list_pipelines(backend)

    assert list(found) == sorted(["orders", "torn", "nameless", forgotten])
    assert (found["orders"], found["nameless"]) == (orders, nameless)
    assert isinstance(found["torn"], Corrupt)
    assert isinstance(found[forgotten], Corrupt)
    assert torn not in found.values()


def test_a_uuid_is_found_beside_damaged_records_and_a_name_is_in_doubt() -> None:
    backend = MemoryBackend()
    orders, gone = open_pipeline(backend, "orders"), open_pipeline(backend, "gone")
    backend.delete(ObjectPath("names/gone"))
    backend.put(ObjectPath(f"labels/{gone}"), b"torn")

    assert identify(backend, orders) == ("orders", orders)
    with pytest.raises(Corrupt, match=f"labels/{gone}"):
        identify(backend, "gone")

"""A pipeline's parts side by side: what one says of another while another process goes on."""

from collections.abc import Callable

from tests.unit.store.cuts import PIPELINE, sample_claim, sample_committed, sample_decision

from cutwater.store.backends.memory import MemoryBackend
from cutwater.store.paths import ObjectPath, PipelinePaths
from cutwater.store.pipeline_store import PipelineStore

PATHS = PipelinePaths(PIPELINE)


class Meddled(MemoryBackend):
    """A store in which something happens right before commit records are listed, once."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def list(self, prefix: ObjectPath, after: ObjectPath | None = None) -> tuple[ObjectPath, ...]:
        if prefix == PATHS.commits and self.meanwhile:
            self.meanwhile.pop()()
        return super().list(prefix, after)


def test_a_decision_that_is_committed_meanwhile_is_not_lost() -> None:
    backend = Meddled()
    store, driver = PipelineStore.of(backend, PIPELINE), PipelineStore.of(backend, PIPELINE)
    store.log.create(sample_claim())

    def go_on() -> None:
        driver.log.create(sample_decision())
        driver.commits.record(sample_committed())

    backend.meanwhile.append(go_on)

    assert not store.lacks_decision()
    assert store.log.read().last_slot == store.commits.through() == 2


def test_a_decision_that_is_committed_and_not_in_the_log_is_lost() -> None:
    store = PipelineStore.of(MemoryBackend(), PIPELINE)
    store.log.create(sample_claim())
    store.commits.record(sample_committed())

    assert store.lacks_decision()

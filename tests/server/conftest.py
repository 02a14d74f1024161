"""The application over a pipeline that runs without Spark, and over the store of a stopped one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.server.api_client import ApiClient, connect_clients
from tests.server.sparkless_run import SparklessRun

from cutwater.server.app import make_app
from cutwater.server.auth import Token
from cutwater.server.pipeline_view import PipelineView
from cutwater.server.pipelines import OnePipeline, Pipelines, StoredPipelines, Unreadable


@pytest.fixture
def running(tmp_path: Path) -> SparklessRun:
    return SparklessRun(tmp_path / "store")


class Box:
    """The pipelines of whatever test runs: one server is enough for all of them."""

    current: Pipelines

    def all(self) -> Sequence[PipelineView | Unreadable]:
        return self.current.all()

    def state(self) -> str:
        return self.current.state()

    def find(self, text: str) -> PipelineView:
        return self.current.find(text)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Box, ApiClient, Token]]:
    box, token = Box(), Token.of(tmp_path_factory.mktemp("token"))
    with connect_clients(make_app(box, token, "127.0.0.1"), token) as made:
        yield box, made, token


@pytest.fixture
def live(running: SparklessRun, shared: tuple[Box, ApiClient, Token]) -> ApiClient:
    box, made, token = shared
    box.current = OnePipeline(running.served(token.hint))
    return made


@pytest.fixture
def stopped(running: SparklessRun, shared: tuple[Box, ApiClient, Token]) -> ApiClient:
    box, made, token = shared
    box.current = StoredPipelines(running.stored.backend, token.hint)
    return made

"""Nonsense from a machine: whatever is sent, the answer is one that the OpenAPI document promises.

Schemathesis makes requests from the document, valid and invalid, and compares every answer with
it; an answer of 500 or more, an unknown status or another form of body is a failure.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.server.api_client import bearer, serve_app
from tests.server.sparkless_run import SparklessRun

from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.runtime.reporting.status import CheckpointReport
from cutwater.server.app import make_app, unguarded_app
from cutwater.server.auth import Token
from cutwater.server.pipeline_view import PipelineView
from cutwater.server.pipelines import OnePipeline, Pipelines, StoredPipelines, Unreadable

EXAMPLES = 6
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class Nothing:
    """No pipeline at all: enough to make the document."""

    def all(self) -> Sequence[PipelineView | Unreadable]:
        return ()

    def state(self) -> str:
        return "STARTING"

    def find(self, text: str) -> PipelineView:
        raise AssertionError(text)


schema = schemathesis.openapi.from_dict(unguarded_app(Nothing()).openapi())


class Willing(SparklessRun):
    """Does whatever it is asked for at once, and leaves no trace in its store."""

    def _take(self, kind: CheckpointKind, name: str | None) -> CheckpointReport:
        return CheckpointReport(CheckpointId(1), "COMPLETED", 5, kind.name, name=name)

    def stop(
        self, *, checkpoint: bool = True, savepoint: str | None = None, drain: bool = False
    ) -> None:
        super().stop(checkpoint=checkpoint, savepoint=savepoint, drain=drain)
        # It runs for the next request too: one that does not is not ready, which is a 503.
        self.state = "RUNNING"


class Place(NamedTuple):
    url: str
    headers: dict[str, str]


@pytest.fixture(scope="module", params=["runs", "does not run"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("fuzz")
    token = Token.of(directory)
    willing = Willing(directory / "store")
    willing.stored.writer.decide(1, in_flight=True)
    willing.stored.writer.decide(2, CheckpointKind.SAVEPOINT, name="saved")
    pipelines: Pipelines = (
        OnePipeline(willing.served())
        if request.param == "runs"
        else StoredPipelines(willing.stored.backend)
    )
    with serve_app(make_app(pipelines, token, "127.0.0.1")) as url:
        yield Place(url, bearer(token))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        yield made


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_has_an_answer_that_is_not_promised(
    case: schemathesis.Case[Any], place: Place, session: requests.Session
) -> None:
    # As it is, which mostly names a pipeline that is not there; and again for one that is.
    _send(case, place, session)
    if "jobid" in (case.path_parameters or {}):
        case.path_parameters["jobid"] = "orders"
        _send(case, place, session)


def _send(case: schemathesis.Case[Any], place: Place, session: requests.Session) -> None:
    response = case.call(base_url=place.url.rstrip("/"), session=session, headers=place.headers)
    case.validate_response(response, checks=CHECKS)

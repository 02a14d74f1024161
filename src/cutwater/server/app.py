"""The HTTP application, and the servers that run it: for a run of this process, or for a store.

`make_app` puts the API, the metrics and the dashboard behind the guard (`auth`). The dashboard's
files are read once, by name, from this package; no path of a request reaches the file system.

The server of a run answers probes before there is a run: starting Spark and recovering can take
minutes, and a supervisor must see meanwhile that the process is alive. A served run writes its
address to the store, beside its lease, so that clients that find the pipeline find its API. The
record never holds the token, only the name of the file that holds it.
"""

import logging
import socket
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from cutwater._version import __version__
from cutwater.errors import StoreError
from cutwater.server import errors as answers
from cutwater.server import metrics
from cutwater.server.auth import Guard, PublicUrl, Token
from cutwater.server.pipeline_view import Live, PipelineView
from cutwater.server.pipelines import READY, OnePipeline, Pipelines, StoredPipelines
from cutwater.server.routes import routes
from cutwater.server.uvicorn_server import Endpoint, Server, bind
from cutwater.store.backends.backend import Backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Address, Addresses
from cutwater.views.models import State

if TYPE_CHECKING:
    from cutwater.run import PipelineRun


_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ABOUT: Final = (
    "Checkpoints of a Cutwater pipeline, by the paths and fields of Flink's REST interface where "
    "it has one. Times are milliseconds since 1970, durations milliseconds, sizes bytes. Changing "
    "needs the token of the process that serves."
)


def unguarded_app(pipelines: Pipelines) -> FastAPI:
    """Return the application without its guard, for tests."""
    app = FastAPI(
        title="Cutwater",
        version=__version__,
        description=_ABOUT,
        openapi_url="/openapi.json",
        # Their pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    answers.install_handlers(app)
    app.include_router(routes(pipelines))
    collector = metrics.PipelineCollector(pipelines)

    @app.get(
        "/metrics",
        operation_id="getMetrics",
        response_class=Response,
        responses={**answers.RESPONSES, 200: {"content": {"text/plain": {}}}},
    )
    def prometheus() -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(metrics.metrics_text(collector), media_type=metrics.CONTENT_TYPE)

    _add_probes(app, pipelines)
    _add_files(app)
    return app


def make_app(
    pipelines: Pipelines, token: Token | None, host: str, public_url: PublicUrl | None = None
) -> Guard:
    """Return the application with its guard; without a token it accepts only probes."""
    return Guard(unguarded_app(pipelines), token, host, public_url)


def _add_probes(app: FastAPI, pipelines: Pipelines) -> None:
    # On the server's loop and not on its threads: probes work while all threads wait.
    @app.get("/livez", operation_id="isLive")
    async def livez() -> State:
        """Return 200: a process that responds is alive, whatever its state."""
        return State(state=pipelines.state())

    @app.get("/readyz", operation_id="isReady", responses={503: {"model": State}})
    async def readyz(response: Response) -> State:
        """Return 200 if the pipeline runs and its sinks commit; 503 if not."""
        state = pipelines.state()
        response.status_code = 200 if state in READY else 503
        return State(state=state)


def _add_files(app: FastAPI) -> None:
    found = {
        entry.name: entry.read_bytes()
        for entry in files("cutwater.server").joinpath("static").iterdir()
        if _suffix(entry.name) in _TYPES
    }

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in found:
            return answers.refuse(404, "there is no such file")
        return Response(found[name], media_type=_TYPES[_suffix(name)])

    async def icon(_: Request) -> Response:
        return Response(found["icon.svg"], media_type=_TYPES[".svg"])

    app.add_route("/", file, methods=["GET"], include_in_schema=False)
    app.add_route("/static/{name}", file, methods=["GET"], include_in_schema=False)
    app.add_route("/favicon.ico", icon, methods=["GET"], include_in_schema=False)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


_LOG: Final = logging.getLogger(__name__)


class RunServer:
    """Serves the run of this process: probes at once, the rest when there is a run.

    Its `url` is the public address: that of the proxy, if there is one.
    """

    def __init__(
        self, listening: socket.socket, host: str, public_url: PublicUrl | None = None
    ) -> None:
        """Start the server, for probes only; the listening socket is closed with it."""
        self._pipeline = OnePipeline()
        self._guard = make_app(self._pipeline, None, host, public_url)
        self.server = Server(self._guard, listening, host)
        self.url = self.server.url if public_url is None else public_url.text
        try:
            self.server.start()
        except BaseException:
            listening.close()
            raise

    def show(self, run: "PipelineRun") -> Token:
        """Serve a run, and write its address to the store; return the token for changes."""
        context = run.context
        view = PipelineView(
            context.plan.pipeline,
            PipelineStore.of(context.store.backend, context.pipeline),
            Live(run, context.plan, context.options, context.targets),
        )
        # Before the token: a run is ready even if no token can be written.
        self._pipeline.show(view)
        token = Token.of(context.scratch)
        view.token_hint = token.hint
        self._guard.admit(token)
        address = Address(
            holder=run.lease.nonce,
            url=self.url,
            host=socket.gethostname(),
            token_file=None if token.file is None else str(token.file),
        )
        try:
            Addresses(context.store.backend, context.pipeline).tell(address)
        except StoreError as error:
            _LOG.warning("others will not find the API at %s by the store: %s", self.url, error)
        return token


def serve_run(
    run: "PipelineRun", endpoint: Endpoint | None = None, public_url: str | None = None
) -> tuple[Server, Token]:
    """Serve a pipeline that runs in this process, until the process or the server ends.

    Without an endpoint it listens on a free port of this machine. `public_url` is the address of a
    proxy in front of it. Returns the server, already responding, and the token for changes.

    Raises:
        ConfigError: If the address cannot be bound, or no token can be written.
    """
    where = endpoint or Endpoint()
    public = None if public_url is None else PublicUrl.of(public_url, "public_url")
    made = RunServer(bind(where), where.host, public)
    try:
        return made.server, made.show(run)
    except BaseException:
        made.server.stop()
        raise


def serve_store(
    backend: Backend,
    directory: Path,
    endpoint: Endpoint | None = None,
    public_url: PublicUrl | None = None,
) -> tuple[Server, Token]:
    """Serve all pipelines of a store, whether they run or not, until the server is stopped.

    The token's file is written to the directory; everything else is as for `serve_run`.
    """
    where = endpoint or Endpoint()
    listening = bind(where, "--listen")
    try:
        token = Token.of(directory)
        pipelines = StoredPipelines(backend, token.hint)
        app = make_app(pipelines, token, where.host, public_url)
        server = Server(app, listening, where.host)
        server.start()
    except BaseException:
        listening.close()
        raise
    return server, token

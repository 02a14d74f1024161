"""The whole application: the API, the metrics and the dashboard, behind the guard.

The dashboard's files are read once, by name, from this package; there is no directory that an
address could walk into.
"""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from cutwater._version import __version__
from cutwater.server import errors as answers
from cutwater.server import metrics
from cutwater.server.auth import Guard
from cutwater.server.pipelines import READY, Pipelines
from cutwater.server.public_url import PublicUrl
from cutwater.server.routes import routes
from cutwater.server.token import Token
from cutwater.views.pipeline_models import State

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
    """Return the application without its guard, as tests look into it."""
    app = FastAPI(
        title="Cutwater",
        version=__version__,
        description=_ABOUT,
        openapi_url="/openapi.json",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    answers.install(app)
    app.include_router(routes(pipelines))
    board = metrics.Board(pipelines)

    @app.get(
        "/metrics",
        operation_id="getMetrics",
        response_class=Response,
        responses={**answers.RESPONSES, 200: {"content": {"text/plain": {}}}},
    )
    def prometheus() -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(metrics.text_of(board), media_type=metrics.CONTENT_TYPE)

    _add_probes(app, pipelines)
    _add_files(app)
    return app


def make_app(
    pipelines: Pipelines, token: Token | None, host: str, public_url: PublicUrl | None = None
) -> Guard:
    """Return the application as it is served.

    Args:
        pipelines: What it shows.
        token: What changes need; None to answer probes alone until there is one.
        host: The address that it is bound to, which says who can reach it.
        public_url: The address of a proxy in front of it; None if there is none.
    """
    return Guard(unguarded_app(pipelines), token, host, public_url)


def _add_probes(app: FastAPI, pipelines: Pipelines) -> None:
    # On the server's loop, and not on its threads: a probe is answered while all of them wait.
    @app.get("/livez", operation_id="isLive")
    async def livez() -> State:
        """Say that the process lives; it does as long as it answers, whatever its state is."""
        return State(state=pipelines.state())

    @app.get("/readyz", operation_id="isReady", responses={503: {"model": State}})
    async def readyz(response: Response) -> State:
        """Say whether the pipeline runs and its sinks commit; 503 if not."""
        state = pipelines.state()
        response.status_code = 200 if state in READY else 503
        return State(state=state)


def _add_files(app: FastAPI) -> None:
    found = {
        one.name: one.read_bytes()
        for one in files("cutwater.server").joinpath("static").iterdir()
        if _suffix(one.name) in _TYPES
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

"""Puts a server together: for a pipeline that runs in this process, or for a store.

The server of a run answers probes before there is a run: Spark's start and a recovery may take
minutes, and whatever supervises the process must see meanwhile that it lives. A served run tells
its address in the store, beside its lease, so that whoever finds the pipeline finds its API. The
token is never part of that, only the name of the file that holds it.
"""

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cutwater.errors import StoreError
from cutwater.server.app import make_app
from cutwater.server.pipeline_view import Live, Served
from cutwater.server.pipelines import OnePipeline, StoredPipelines
from cutwater.server.public_url import PublicUrl
from cutwater.server.token import Token
from cutwater.server.uvicorn_server import Endpoint, Server, bind
from cutwater.store.backends.backend import Backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.lease import Address, Addresses

if TYPE_CHECKING:
    from cutwater.run import PipelineRun

_LOG: Final = logging.getLogger(__name__)


class RunServer:
    """Serves the run of this process: its probes at once, the rest when there is a run.

    Attributes:
        server: The server.
        url: Where people find it: at its proxy, if it has one.
    """

    def __init__(
        self, listening: socket.socket, host: str, public_url: PublicUrl | None = None
    ) -> None:
        """Begin to answer probes.

        Args:
            listening: A socket that listens; it is closed with the server.
            host: The address that it is bound to, as the user wrote it.
            public_url: The address of a proxy in front of it; None if there is none.

        Raises:
            RunError: If the server does not start.
        """
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
        """Serve a run, and tell its address in the store; return the token that changes need.

        Raises:
            ConfigError: If no token can be kept.
        """
        context = run.context
        served = Served(
            context.plan.pipeline,
            PipelineStore.of(context.store.backend, context.pipeline),
            Live(run, context.plan, context.options, context.targets),
        )
        # Before the token: a run is ready even if no token can be kept.
        self._pipeline.show(served)
        token = Token.of(context.scratch)
        served.token_hint = token.hint
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

    Args:
        run: The run.
        endpoint: Where to listen; None for a free port of this machine.
        public_url: The address of a proxy in front of it; None if there is none.

    Returns:
        The server, which answers already, and the token that changes need.

    Raises:
        ConfigError: If the address cannot be bound to, or no token can be kept.
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
    """Serve all pipelines of a store, whoever runs them, until the server is stopped.

    Args:
        backend: The store.
        directory: Where the token's file is made.
        endpoint: Where to listen; None for a free port of this machine.
        public_url: The address of a proxy in front of it; None if there is none.

    Returns:
        The server, which answers already, and the token that changes need.

    Raises:
        ConfigError: If the address cannot be bound to, or no token can be kept.
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

"""Puts a server together: for a pipeline that runs in this process, or for a store.

A served run tells its address in the store, beside its lease, so that whoever finds the pipeline
finds its API. The token is never part of that, only the name of the file that holds it.
"""

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cutwater.errors import StoreError
from cutwater.serve.app import make_app
from cutwater.serve.catalog import OnePipeline, StoredPipelines
from cutwater.serve.served import Live, Served
from cutwater.serve.server import Endpoint, Server, bind
from cutwater.serve.token import Token
from cutwater.store.addresses import Address, Addresses
from cutwater.store.backend import Backend
from cutwater.store.opened import OpenStore

if TYPE_CHECKING:
    from cutwater.run import PipelineRun

_LOG: Final = logging.getLogger(__name__)


def serve_run(
    run: "PipelineRun",
    endpoint: Endpoint | None = None,
    listening: socket.socket | None = None,
) -> tuple[Server, Token]:
    """Serve a pipeline that runs in this process, until the process or the server ends.

    Args:
        run: The run.
        endpoint: Where to listen; None for a free port of this machine.
        listening: A socket that listens there already; None to make one.

    Returns:
        The server, which answers already, and the token that changes need.

    Raises:
        ConfigError: If the address cannot be bound to, or no token can be kept.
    """
    context = run.context
    where = endpoint or Endpoint()
    if listening is None:
        listening = bind(where)
    try:
        token = Token.of(context.scratch)
        served = Served(
            context.plan.pipeline,
            OpenStore.of(context.store.backend, context.pipeline),
            Live(run, context.plan, context.options, context.targets),
            token.hint,
        )
        server = Server(make_app(OnePipeline(served), token, where.host), listening, where.host)
        server.start()
    except BaseException:
        listening.close()
        raise
    address = Address(
        holder=run.lease.nonce,
        url=server.url,
        host=socket.gethostname(),
        token_file=None if token.file is None else str(token.file),
    )
    try:
        Addresses(context.store.backend, context.pipeline).tell(address)
    except StoreError as error:
        _LOG.warning("others will not find the API at %s by the store: %s", server.url, error)
    return server, token


def serve_store(
    backend: Backend, directory: Path, endpoint: Endpoint | None = None
) -> tuple[Server, Token]:
    """Serve all pipelines of a store, whoever runs them, until the server is stopped.

    Args:
        backend: The store.
        directory: Where the token's file is made.
        endpoint: Where to listen; None for a free port of this machine.

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
        server = Server(make_app(pipelines, token, where.host), listening, where.host)
        server.start()
    except BaseException:
        listening.close()
        raise
    return server, token

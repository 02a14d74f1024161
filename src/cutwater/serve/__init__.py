"""Serving a pipeline to people and programs: REST API, metrics, dashboard.

`serve_run` serves a pipeline that runs in this process, `serve_store` all that a store holds. Both
need the extra `cutwater[serve]`; nothing below this package does.
"""

__all__ = ["Endpoint", "Server", "serve_run", "serve_store"]

from cutwater.serve.server import Endpoint, Server
from cutwater.serve.starting import serve_run, serve_store

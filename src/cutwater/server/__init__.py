"""Serving a pipeline to users and programs: REST API, metrics, dashboard.

`serve_run` serves a pipeline that runs in this process, `serve_store` all that a store holds. Both
need the extra `cutwater[serve]`; nothing below this package does. `extra` is imported first, before
any module that imports one of its packages: it raises a ConfigError that names the extra where it
is not installed, instead of an ImportError that names one of its packages.
"""

__all__ = ["PARTS", "Endpoint", "PublicUrl", "Server", "serve_run", "serve_store"]

from cutwater.server.extra import PARTS

# isort: split
from cutwater.server.app import serve_run, serve_store
from cutwater.server.auth import PublicUrl
from cutwater.server.uvicorn_server import Endpoint, Server

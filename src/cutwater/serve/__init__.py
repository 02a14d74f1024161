"""Serving a pipeline to people and programs: REST API, metrics, dashboard.

`serve_run` serves a pipeline that runs in this process, `serve_store` all that a store holds. Both
need the extra `cutwater[serve]`; nothing below this package does. `extra` is imported first, and
raises a ConfigError that names the extra where it is not installed.
"""

__all__ = ["PARTS", "Endpoint", "PublicUrl", "Server", "serve_run", "serve_store"]

from cutwater.serve.extra import PARTS
from cutwater.serve.public_url import PublicUrl
from cutwater.serve.server import Endpoint, Server
from cutwater.serve.starting import serve_run, serve_store

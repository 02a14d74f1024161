"""`cutwater run --serve`: the API and dashboard of a run, on by default on this machine alone.

Serving never keeps a pipeline from running: without a wish of the user's own, whatever is in its
way is a line on the screen. An address that was asked for and cannot be had is an error, before
Spark starts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cutwater.errors import ConfigError, CutwaterError

if TYPE_CHECKING:
    import socket

    from cutwater.run import PipelineRun
    from cutwater.serve import Endpoint

    _Listening = tuple[Endpoint, socket.socket]

AUTO: Final = "auto"
OFF: Final = "off"
_PARTS: Final = ("fastapi", "uvicorn", "prometheus_client")

ServeOption = Annotated[
    str,
    typer.Option(
        "--serve",
        metavar="[HOST:]PORT|auto|off",
        envvar="CUTWATER_SERVE",
        help="Where the API and dashboard answer; auto is port 4080 of this machine, or the next "
        "free one.",
    ),
]


def missing_extra() -> str | None:
    """Say what must be installed to serve; None if everything is there."""
    missing = [one for one in _PARTS if find_spec(one) is None]
    if not missing:
        return None
    return f"{', '.join(missing)} not found: install cutwater[serve]"


class Serving:
    """How a run is to be served."""

    def __init__(self, wish: str) -> None:
        """Listen, if that is wished; nothing is answered yet.

        Raises:
            ConfigError: If an address was asked for and cannot be had.
        """
        self._listening: _Listening | None = None
        self._problem = ""
        if wish == OFF:
            return
        extra = missing_extra()
        if extra is not None:
            if wish != AUTO:
                raise ConfigError("--serve", extra)
            self._problem = f"no dashboard: {extra}"
            return
        # Here, since it needs an extra, and costs time that `--serve off` need not spend.
        from cutwater.serve.server import Endpoint, bind  # noqa: PLC0415

        endpoint = Endpoint() if wish == AUTO else Endpoint.of(wish)
        try:
            self._listening = (endpoint, bind(endpoint))
        except ConfigError as error:
            if wish != AUTO:
                raise
            self._problem = f"no dashboard: {error.reason}"

    @contextmanager
    def of(self, run: "PipelineRun", tell: Callable[[str], None]) -> Iterator[None]:
        """Serve a run meanwhile."""
        if self._problem:
            tell(self._problem)
        if self._listening is None:
            yield
            return
        from cutwater.serve.starting import serve_run  # noqa: PLC0415

        endpoint, listening = self._listening
        try:
            server, token = serve_run(run, endpoint, listening)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline runs
            reason = error.message if isinstance(error, CutwaterError) else repr(error)
            listening.close()
            tell(f"no dashboard: {reason}")
            yield
            return
        # On a line of its own: an address that something follows is hard to click on.
        tell(f"dashboard and API at {server.url}")
        tell(f"to change something there: {token.hint}")
        try:
            yield
        finally:
            server.stop()

"""`cutwater run --serve`: the API and dashboard of a run, on by default on this machine alone.

Serving never keeps a pipeline from running: without a wish of the user's own, whatever is in its
way is a line on the screen. An address that was asked for and cannot be had is an error, before
Spark starts. From then on it answers probes, so that a long recovery is not taken for a dead
process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cutwater.errors import ConfigError, CutwaterError

if TYPE_CHECKING:
    from cutwater.run import PipelineRun
    from cutwater.server.starting import RunServer

AUTO: Final = "auto"
OFF: Final = "off"

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


PublicUrlOption = Annotated[
    str | None,
    typer.Option(
        "--public-url",
        metavar="URL",
        help="The address of a TLS proxy in front of the API and dashboard; everything but probes "
        "then needs the token.",
        show_default="none",
    ),
]


class Serving:
    """How a run is served: its probes from now on, the rest from `of` on."""

    def __init__(self, wish: str, public_url: str | None = None) -> None:
        """Listen and answer probes, if that is wished.

        Raises:
            ConfigError: If an address was asked for and cannot be had, the public one is none, or
                the token of the environment is too short.
        """
        self._made: RunServer | None = None
        self._problem = ""
        if wish == OFF:
            return
        try:
            # Here, since it needs an extra, and costs time that `--serve off` need not spend.
            from cutwater.server import starting  # noqa: PLC0415
        except ConfigError as error:
            if wish != AUTO:
                raise ConfigError("--serve", error.reason) from error
            self._problem = f"no dashboard: {error.reason}"
            return
        from cutwater.server.public_url import PublicUrl  # noqa: PLC0415
        from cutwater.server.token import given_token  # noqa: PLC0415
        from cutwater.server.uvicorn_server import Endpoint, bind  # noqa: PLC0415

        public = None if public_url is None else PublicUrl.of(public_url)
        endpoint = Endpoint() if wish == AUTO else Endpoint.of(wish)
        try:
            given_token()
            self._made = starting.RunServer(bind(endpoint), endpoint.host, public)
        except (CutwaterError, OSError) as error:
            if wish != AUTO:
                raise
            self._problem = f"no dashboard: {_reason(error)}"

    @contextmanager
    def of(self, run: "PipelineRun", tell: Callable[[str], None]) -> Iterator[None]:
        """Serve a run meanwhile, and nothing any more in the end."""
        try:
            self._show(run, tell)
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Answer nothing any more; may be called again."""
        if self._made is not None:
            self._made.server.stop()
            self._made = None

    def _show(self, run: "PipelineRun", tell: Callable[[str], None]) -> None:
        if self._problem:
            tell(self._problem)
        if self._made is None:
            return
        try:
            token = self._made.show(run)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline runs
            tell(f"no dashboard: {_reason(error)}")
            return
        # On a line of its own: an address that something follows is hard to click on.
        tell(f"dashboard and API at {self._made.url}")
        tell(f"to change something there: {token.hint}")


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return error.reason
    return error.message if isinstance(error, CutwaterError) else repr(error)

"""Errors as responses: each with a status, a sentence and, where there is one, a next step.

A malformed request gets a 4xx that says what is wrong with it and never echoes it. A store that
cannot be read is a 503. An unexpected error is logged, and its response has no details.
"""

import logging
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cutwater.errors import (
    ConfigError,
    CutwaterError,
    MoveRefused,
    NotRunning,
    StoreError,
)
from cutwater.server.operations import TooMany
from cutwater.server.pipeline_view import Busy
from cutwater.server.pipelines import NotServed
from cutwater.views.models import Problem

_LOG: Final = logging.getLogger(__name__)
_SHOWN_MAX: Final = 10

RESPONSES: Final[dict[int | str, dict[str, object]]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The request is not valid.",
        401: "The token is needed.",
        403: "The request comes from another site.",
        404: "There is no such thing.",
        405: "The method is not supported here.",
        409: "Not possible now.",
        413: "The body is too long.",
        415: "The body is not JSON.",
        422: "The request is not valid.",
        429: "Too many requests are open.",
        503: "The store is not available.",
    }.items()
}


def refuse(status: int, reason: str, *, code: str = "", next_step: str = "") -> JSONResponse:
    problem = Problem(errors=[reason[:2_000]], code=code, next_step=next_step)
    return JSONResponse(problem.model_dump(), status_code=status)


def install_handlers(app: FastAPI) -> None:
    """Make an application respond to all errors in one form."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        found = [
            f"{'.'.join(str(part)[:100] for part in problem['loc'])}: {problem['msg'][:300]}"
            for problem in error.errors()[:_SHOWN_MAX]
        ]
        return JSONResponse(Problem(errors=found).model_dump(), status_code=400)

    @app.exception_handler(HTTPException)
    async def _known(_: Request, error: HTTPException) -> JSONResponse:
        problem = Problem(errors=[str(error.detail)[:2_000]])
        return JSONResponse(
            problem.model_dump(), status_code=error.status_code, headers=error.headers
        )

    @app.exception_handler(NotServed)
    async def _unknown(_: Request, error: NotServed) -> JSONResponse:
        return refuse(404, str(error))

    @app.exception_handler(TooMany)
    async def _too_many(_: Request, __: TooMany) -> JSONResponse:
        return refuse(429, "too many requests are open; try again later")

    @app.exception_handler(Busy)
    async def _busy(_: Request, __: Busy) -> JSONResponse:
        return refuse(429, "another client is requesting the same; try again later")

    @app.exception_handler(CutwaterError)
    async def _ours(_: Request, error: CutwaterError) -> JSONResponse:
        status = status_of(error)
        if status >= 500:
            _LOG.warning("the API could not answer: %s", error)
        return refuse(status, error.message, code=error.code, next_step=error.next_step)

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        _LOG.error("the API failed", exc_info=error)
        return refuse(500, "this is a defect; the log of the process has the details")


def status_of(error: CutwaterError) -> int:
    match error:
        case ConfigError():
            return 400
        case NotRunning() | MoveRefused():
            return 409
        case StoreError():
            return 503
        case _:
            return 409

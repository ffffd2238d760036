# SPDX-License-Identifier: MIT
"""The ASGI application: routes, and how errors are answered."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tokenspeed_hookspecs import EngineUnavailableError
from tokenspeed_openai.chat import ChatApi
from tokenspeed_openai.completions import CompletionsApi
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.errors import ApiError, unavailable
from tokenspeed_openai.streams import ClientGoneError

CLIENT_GONE = 499  # what other servers log; nobody reads it


def application(deployment: Deployment) -> Starlette:
    """Every endpoint over one deployment."""
    return Starlette(
        routes=[
            Route("/v1/completions", CompletionsApi(deployment).complete, methods=["POST"]),
            Route("/v1/chat/completions", ChatApi(deployment).complete, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: _api_error,
            EngineUnavailableError: _engine_gone,
            ClientGoneError: _client_gone,
            HTTPException: _http_error,
            Exception: _own_fault,
        },
    )


def _answer(error: ApiError) -> Response:
    return Response(error.body(), status_code=error.status, media_type="application/json")


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(error)


async def _engine_gone(request: Request, error: Exception) -> Response:
    return _answer(unavailable(error))


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or a method that is not there."""
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    answer = _answer(ApiError(error.status_code, f"{error.detail}: {place[:200]}"))
    answer.headers.update(error.headers or {})
    return answer


async def _own_fault(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this is sent, and uvicorn logs it."""
    return _answer(ApiError(500, f"The server failed: {type(error).__name__}"))

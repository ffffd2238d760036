# SPDX-License-Identifier: MIT
"""The ASGI application: routes, keys, and how errors are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tokenspeed_hookspecs import EngineUnavailableError
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.endpoints import Endpoint, endpoints
from tokenspeed_openai.errors import ApiError, unavailable
from tokenspeed_openai.generation import Answer
from tokenspeed_openai.keys import Keys
from tokenspeed_openai.openapi import document
from tokenspeed_openai.state import StateApi, server_version
from tokenspeed_openai.streams import ClientGoneError

CLIENT_GONE = 499  # what other servers log; nobody reads it


def application(deployment: Deployment) -> Starlette:
    """Every endpoint over one deployment."""
    table, keys = endpoints(deployment), Keys(deployment.options)
    described = msgspec.json.encode(document(table, version=server_version()))

    async def openapi(request: Request) -> Response:
        return Response(described, media_type="application/json")

    return Starlette(
        routes=[
            Route("/", StateApi(deployment).page),
            Route("/openapi.json", openapi),
            *(Route(each.path, _guarded(each, keys), methods=[each.method]) for each in table),
        ],
        exception_handlers={
            ApiError: _api_error,
            EngineUnavailableError: _engine_gone,
            ClientGoneError: _client_gone,
            HTTPException: _http_error,
            Exception: _own_fault,
        },
    )


def _guarded(endpoint: Endpoint, keys: Keys) -> Callable[[Request], Awaitable[Answer]]:
    async def guarded(request: Request) -> Answer:
        keys.check(request, endpoint.access)
        return await endpoint.call(request)

    return guarded


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

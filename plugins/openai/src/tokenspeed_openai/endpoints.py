# SPDX-License-Identifier: MIT
"""The table of endpoints: routes and the OpenAPI document are both made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from attrs import frozen
from msgspec import Struct
from starlette.requests import Request

from tokenspeed_openai import requests, responses
from tokenspeed_openai.chat import ChatApi
from tokenspeed_openai.completions import CompletionsApi
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.generation import Answer
from tokenspeed_openai.keys import Access
from tokenspeed_openai.metrics import MetricsApi
from tokenspeed_openai.operations import ACTIONS, QUERIES, Nothing, OperationsApi
from tokenspeed_openai.state import StateApi
from tokenspeed_openai.tokens import TokensApi


@frozen(kw_only=True)
class Endpoint:
    """One path and method; `event` is what a stream's events hold."""

    path: str
    call: Callable[[Request], Awaitable[Answer]]
    summary: str
    access: Access = Access.CLIENT
    body: type[Struct] | None = None
    answer: type[Struct] | None = None
    event: type[Struct] | None = None
    errors: tuple[int, ...] = ()

    @property
    def method(self) -> str:
        """What takes a body is posted."""
        return "GET" if self.body is None else "POST"


def endpoints(deployment: Deployment) -> Sequence[Endpoint]:
    """Every endpoint over one deployment."""
    return [*_generation(deployment), *_state(deployment), *_operations(deployment)]


def _generation(deployment: Deployment) -> list[Endpoint]:
    tokens = TokensApi(deployment)
    return [
        Endpoint(
            path="/v1/completions",
            call=CompletionsApi(deployment).complete,
            summary="Continue a text.",
            body=requests.CompletionRequest,
            answer=responses.Completion,
            event=responses.Completion,
            errors=(404, 503),
        ),
        Endpoint(
            path="/v1/chat/completions",
            call=ChatApi(deployment).complete,
            summary="Answer a conversation.",
            body=requests.ChatRequest,
            answer=responses.ChatCompletion,
            event=responses.ChatChunk,
            errors=(404, 503),
        ),
        Endpoint(
            path="/tokenize",
            call=tokens.tokenize,
            summary="The tokens of a text or a conversation.",
            body=requests.TokenizeRequest,
            answer=responses.Tokens,
            errors=(404,),
        ),
        Endpoint(
            path="/detokenize",
            call=tokens.detokenize,
            summary="The text of tokens.",
            body=requests.DetokenizeRequest,
            answer=responses.Text,
            errors=(404,),
        ),
    ]


def _state(deployment: Deployment) -> list[Endpoint]:
    state = StateApi(deployment)
    return [
        Endpoint(
            path="/v1/models",
            call=state.models,
            summary="The models: one.",
            answer=responses.ModelList,
        ),
        Endpoint(
            path="/v1/models/{model:path}",
            call=state.model,
            summary="A model by its name.",
            answer=responses.ModelCard,
            errors=(404,),
        ),
        Endpoint(
            path="/health",
            call=state.health,
            summary="Whether requests can run.",
            access=Access.OPEN,
            answer=responses.Health,
        ),
        Endpoint(path="/ping", call=state.ping, summary="Whether it answers.", access=Access.OPEN),
        Endpoint(
            path="/version",
            call=state.version,
            summary="The versions of engine and server.",
            access=Access.OPEN,
            answer=responses.Version,
        ),
        Endpoint(
            path="/metrics",
            call=MetricsApi(deployment).page,
            summary="The engines' series, for scrapers; there with the plugin `metrics`.",
            access=Access.LOCAL,
            errors=(404, 503),
        ),
        Endpoint(
            path="/stats",
            call=state.stats,
            summary="What runs now, and what was counted.",
            access=Access.LOCAL,
            answer=responses.Stats,
        ),
        Endpoint(
            path="/composition",
            call=state.composition,
            summary="What the engine is composed of.",
            access=Access.LOCAL,
            answer=responses.Composition,
        ),
    ]


def _operations(deployment: Deployment) -> list[Endpoint]:
    operations = OperationsApi(deployment)
    describe = Endpoint(
        path="/engine/describe",
        call=operations.describe,
        summary="What each engine is composed of and does.",
        access=Access.LOCAL,
        answer=responses.Replies,
        errors=(409, 503),
    )
    queries = [
        Endpoint(
            path=f"/engine/{name}",
            call=operations.query(name),
            summary=f"Ask every engine: {name}.",
            access=Access.ADMIN,
            answer=responses.Replies,
            errors=(403, 409, 503),
        )
        for name in QUERIES
    ]
    actions = [
        Endpoint(
            path=f"/engine/{name}",
            call=operations.action(name, body),
            summary=f"Have every engine do: {name}.",
            access=Access.ADMIN,
            body=body,
            answer=responses.Replies,
            errors=(403, 409, 503),
        )
        for name, body in ACTIONS.items()
    ]
    other = Endpoint(
        path="/engine/{operation}",
        call=operations.other,
        summary="Have every engine do what a plugin offers.",
        access=Access.ADMIN,
        body=Nothing,
        answer=responses.Replies,
        errors=(403, 409, 503),
    )
    return [describe, *queries, *actions, other]

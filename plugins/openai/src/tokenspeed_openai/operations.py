# SPDX-License-Identifier: MIT
"""`/engine/*`: what operators ask of the engines.

Every engine replies for itself. An operation that one refuses is a 409 with all the replies, so
that the caller sees which engines are in which state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec
from attrs import evolve, frozen
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed_hookspecs import ControlReply, ControlRequest
from tokenspeed_openai.bodies import decode, decode_object, read_body
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.errors import ApiError, invalid
from tokenspeed_openai.keys import Keys
from tokenspeed_openai.responses import Replies, Reply
from tokenspeed_openai.streams import until_gone
from tokenspeed_openai.tokens import json_response

REFUSED = 409


class Nothing(Struct, kw_only=True):
    """An operation without arguments."""


class Pause(Struct, kw_only=True):
    """What running requests do: end now, run to their end, or stand still."""

    mode: Literal["abort", "wait", "keep"] = "abort"


class Memory(Struct, kw_only=True):
    """Which memory, such as kv_cache or weights; all of it without tags."""

    tags: list[str] | UnsetType | None = UNSET


class WeightsFromDisk(Struct, kw_only=True):
    """A folder of weights that the engines can read; `weight_version` names them."""

    model_path: str
    load_format: str | UnsetType | None = UNSET
    weight_version: str | UnsetType | None = UNSET
    flush_cache: bool | UnsetType = UNSET


class Profile(Struct, kw_only=True):
    """Start a trace, or end and write it; `output_dir` is a name below the engine's folder."""

    type: Literal["start", "stop"]
    output_dir: str | UnsetType | None = UNSET
    start_step: int | UnsetType | None = UNSET
    num_steps: int | UnsetType | None = UNSET
    activities: list[str] | UnsetType | None = UNSET
    with_stack: bool | UnsetType | None = UNSET
    record_shapes: bool | UnsetType | None = UNSET
    profile_id: str | UnsetType | None = UNSET


PROFILE_TYPES = {"start": 1, "stop": 2}
QUERIES = ("is_paused", "is_sleeping")
ACTIONS: dict[str, type[Struct]] = {
    "pause": Pause,
    "resume": Nothing,
    "flush_cache": Nothing,
    "release_memory": Memory,
    "resume_memory": Memory,
    "update_weights_from_disk": WeightsFromDisk,
    "profile": Profile,
}


@frozen
class OperationsApi:
    """The endpoints of the operators."""

    deployment: Deployment

    def query(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of an operation that changes nothing."""

        async def endpoint(request: Request) -> Response:
            return await self._ask(request, ControlRequest(name))

        return endpoint

    async def describe(self, request: Request) -> Response:
        """What each engine is composed of and does; the options of plugins, of which some may be
        secrets, are for the admin key only."""
        replies = await self._replies(request, ControlRequest("describe"))
        is_admin = Keys(self.deployment.options).is_admin(request)
        return _answer("describe", replies if is_admin else [_discreet(each) for each in replies])

    def action(self, name: str, body: type[Struct]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of an operation whose arguments are known here."""

        async def endpoint(request: Request) -> Response:
            content = await read_body(request, self.deployment.options.max_body_bytes)
            given, _ = decode(content, body)
            return await self._ask(request, ControlRequest(name, _arguments(given)))

        return endpoint

    async def other(self, request: Request) -> Response:
        """An operation of a plugin; what its arguments are is the plugin's to say."""
        content = await read_body(request, self.deployment.options.max_body_bytes)
        name = request.path_params["operation"]
        return await self._ask(request, ControlRequest(name, decode_object(content)))

    async def _ask(self, request: Request, asked: ControlRequest) -> Response:
        return _answer(asked.name, await self._replies(request, asked))

    async def _replies(self, request: Request, asked: ControlRequest) -> Sequence[ControlReply]:
        try:
            return await until_gone(request.receive, self.deployment.client.control(asked))
        except ValueError as error:
            raise invalid(str(error)) from error


def _answer(name: str, replies: Sequence[ControlReply]) -> Response:
    refused = next((reply for reply in replies if not reply.success), None)
    answer = Replies(replies=[_reply(reply) for reply in replies])
    if refused is None:
        return json_response(answer)
    text = refused.message or f"An engine refused {name}"
    answer.error = ApiError(REFUSED, text, code="operation_refused").detail
    return json_response(answer, status=REFUSED)


def _discreet(reply: ControlReply) -> ControlReply:
    plugins = reply.values.get("plugins")
    if not isinstance(plugins, list | tuple):
        return reply
    shown = [{key: row[key] for key in row if key != "options"} for row in plugins]
    return evolve(reply, values={**reply.values, "plugins": shown})


def _arguments(given: Struct) -> dict[str, Any]:
    """The arguments that were given; the engine knows the defaults of the others."""
    found = msgspec.structs.asdict(given)
    if isinstance(given, Profile):
        found["type"] = PROFILE_TYPES[given.type]
    return {name: value for name, value in found.items() if value is not UNSET}


def _reply(reply: ControlReply) -> Reply:
    values: dict[str, Any] = msgspec.to_builtins(dict(reply.values), str_keys=True)
    return Reply(success=reply.success, message=reply.message, values=values)

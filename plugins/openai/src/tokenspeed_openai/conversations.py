# SPDX-License-Identifier: MIT
"""Messages of the API as chat templates expect them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from tokenspeed_openai.errors import invalid
from tokenspeed_openai.requests import ChatMessage, Tool, ToolCall
from tokenspeed_openai.texts import Prompt, Texts


class Conversation(Protocol):
    """A body that holds one."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None:
        """The messages, in order."""

    @property
    def add_generation_prompt(self) -> bool | None:
        """Whether the model is to answer; it is, unless this says no."""

    @property
    def tools(self) -> Sequence[Tool] | None:
        """What the model may call."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None:
        """Variables of the template."""


async def conversation_prompt(
    body: Conversation, texts: Texts, *, variables: Mapping[str, Any] | None = None
) -> Prompt:
    """A conversation as the tokens the model continues; `variables` of the template instead of the
    body's own."""
    own = body.chat_template_kwargs if variables is None else variables
    return await texts.encode_chat(
        [_message(each, place=f"messages[{at}]") for at, each in enumerate(body.messages or ())],
        add_generation_prompt=body.add_generation_prompt is not False,
        variables={"tools": _tools(body), **(own or {})},
    )


def _tools(body: Conversation) -> list[Any] | None:
    """The tools as the template describes them to the model."""
    if not body.tools:
        return None
    functions = [msgspec.structs.asdict(tool.function) for tool in body.tools]
    return [
        {"type": "function", "function": {k: v for k, v in each.items() if v is not None}}
        for each in functions
    ]


def _message(message: ChatMessage, *, place: str) -> dict[str, Any]:
    content = message.content
    if content is None and message.role != "assistant":
        field = f"{place}.content"
        raise invalid(f"{field} is missing; only an assistant may have said nothing", field)
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    # Templates were written before OpenAI renamed the role.
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": text}
    if message.reasoning_content is not None:
        found["reasoning_content"] = message.reasoning_content
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates want the arguments as an object; the API has them as its text."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}

# SPDX-License-Identifier: MIT
"""Tools: what a request that has some asks of a plugin, and the calls in what the model said.

A named tool's answer is its arguments, a required one's a list of calls; both are JSON by a schema,
whatever the model. A free choice needs the model's own habit: a call between `<tool_call>` marks,
whose inside the plugin holds to the tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from attrs import define, field, frozen

from tokenspeed_openai.errors import invalid
from tokenspeed_openai.marks import open_at
from tokenspeed_openai.requests import ChatRequest, Tool
from tokenspeed_openai.responses import CallDelta, CalledFunction

JSON_FEATURE, TAG_FEATURE = "json_schema", "structural_tag"
OPENING, CLOSING = "<tool_call>", "</tool_call>"


class CallReader(Protocol):
    """Reads one answer: text in, text and calls out."""

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[CallDelta]]:
        """What is text of the answer, and what belongs to calls, in a piece of it."""
        ...


@frozen
class ToolUse:
    """What a request's tools mean for it."""

    features: Mapping[str, object]
    make_reader: Callable[[], CallReader]


def tool_use(body: ChatRequest, features: frozenset[str]) -> ToolUse | None:
    """How the tools of a request are to be used; None if they are not."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none"):
            raise invalid("tool_choice needs tools", "tool_choice")
        return None
    is_single = body.parallel_tool_calls is False
    functions = {tool.function.name: tool for tool in body.tools}
    if isinstance(choice, Tool):
        tool = functions.get(choice.function.name)
        if tool is None:
            raise invalid("tool_choice names a function that is not in tools", "tool_choice")
        _need(JSON_FEATURE, features)
        name = tool.function.name
        return ToolUse({JSON_FEATURE: _schema(tool)}, lambda: _NamedReader(name))
    if choice == "required":
        _need(JSON_FEATURE, features)
        calls = _list_of_calls(body.tools)
        if is_single:
            calls["maxItems"] = 1
        return ToolUse({JSON_FEATURE: calls}, _ListReader)
    _need(TAG_FEATURE, features)
    return ToolUse({TAG_FEATURE: _tag(body.tools, is_single=is_single)}, _TagReader)


def _need(feature: str, features: frozenset[str]) -> None:
    if feature not in features:
        raise invalid(
            f"tools need a plugin that constrains the output (feature {feature!r}), and this "
            "engine has none",
            "tools",
        )


def _schema(tool: Tool) -> Mapping[str, Any]:
    return tool.function.parameters or {"type": "object"}


def _call_schema(tool: Tool, place: str = "#") -> dict[str, Any]:
    """A call of a tool, as a schema that stands at a place of another one."""
    try:
        arguments = _moved(_schema(tool), f"{place}/properties/arguments")
    except RecursionError as error:
        raise invalid("the parameters of a tool are nested too deeply", "tools") from error
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references into itself hold at this place of another one."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, Mapping) or "$id" in schema:
        return schema
    moved = {name: _moved(value, place) for name, value in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str) and (target == "#" or target.startswith("#/")):
        moved["$ref"] = place + target[1:]
    return moved


def _list_of_calls(tools: Sequence[Tool]) -> dict[str, Any]:
    calls = [_call_schema(tool, f"#/items/anyOf/{place}") for place, tool in enumerate(tools)]
    return {"type": "array", "minItems": 1, "items": {"anyOf": calls}}


def _tag(tools: Sequence[Tool], *, is_single: bool) -> dict[str, Any]:
    contents = [{"type": "json_schema", "json_schema": _call_schema(tool)} for tool in tools]
    tags = [
        {"type": "tag", "begin": f"{OPENING}\n", "content": content, "end": f"\n{CLOSING}"}
        for content in contents
    ]
    form = {"type": "triggered_tags", "triggers": [OPENING], "tags": tags}
    return {"format": {**form, "stop_after_first": True} if is_single else form}


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, Any]


def _delta(index: int, call: _Call) -> CallDelta:
    arguments = msgspec.json.encode(call.arguments).decode()
    return _first_delta(index, call.name, arguments=arguments)


def _first_delta(index: int, name: str, *, arguments: str) -> CallDelta:
    function = CalledFunction(name=name, arguments=arguments)
    return CallDelta(index=index, id=f"call_{uuid.uuid4().hex}", type="function", function=function)


@define
class _NamedReader:
    """The whole answer is the arguments of one call."""

    _name: str
    _is_first: bool = field(default=True, init=False)

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[CallDelta]]:
        if self._is_first:
            self._is_first = False
            return "", [_first_delta(0, self._name, arguments=text)]
        if not text:
            return "", []
        return "", [CallDelta(index=0, function=CalledFunction(arguments=text))]


@define
class _ListReader:
    """The whole answer is a list of calls; one that was cut short stays text."""

    _held: str = field(default="", init=False)

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[CallDelta]]:
        self._held += text
        if not is_last:
            return "", []
        try:
            calls = msgspec.json.decode(self._held, type=list[_Call])
        except msgspec.DecodeError:
            return self._held, []
        return "", [_delta(index, call) for index, call in enumerate(calls)]


@define
class _TagReader:
    """Text, with calls between marks; what begins like a mark waits until it is none."""

    _held: str = field(default="", init=False)
    _num_calls: int = field(default=0, init=False)

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[CallDelta]]:
        self._held += text
        told, calls = "", []
        while (end := self._held.find(CLOSING)) >= 0 and OPENING in self._held[:end]:
            before, _, inside = self._held[:end].partition(OPENING)
            self._held = self._held[end + len(CLOSING) :]
            call = self._call(inside)
            told += before if call else f"{before}{OPENING}{inside}{CLOSING}"
            calls += [call] if call else []
        border = len(self._held) if is_last else self._open_at()
        told, self._held = told + self._held[:border], self._held[border:]
        return told, calls

    def _call(self, inside: str) -> CallDelta | None:
        try:
            call = msgspec.json.decode(inside, type=_Call)
        except msgspec.DecodeError:
            return None
        self._num_calls += 1
        return _delta(self._num_calls - 1, call)

    def _open_at(self) -> int:
        """Where a mark begins, or may."""
        found = self._held.find(OPENING)
        if found >= 0:
            return found
        return open_at(self._held, OPENING)

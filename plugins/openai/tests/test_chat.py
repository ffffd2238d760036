# SPDX-License-Identifier: MIT
"""`/v1/chat/completions`, through the `openai` client. The plane says ` 1000`, ` 1001`, ..."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tokenspeed_core.testing.scripted_options import RowFault
from tokenspeed_hookspecs import Plugin

CHAT = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "description": "the time"}},
]


def _chat(site: Any, **wishes: Any) -> Any:
    body = {"model": "scripted", "messages": CHAT, "max_completion_tokens": 3, **wishes}
    return site.openai().chat.completions.create(**body)


def _prompt_text(site: Any) -> str:
    """What the last request gave the model to continue."""
    return bytes(site.client.sent[-1].prompt_ids).decode()


def test_a_conversation_is_answered(site: Any) -> None:
    """The conversation goes through the model's template, and the answer has a role."""
    answer = _chat(site)
    (choice,) = answer.choices
    assert _prompt_text(site) == "user: hi\nassistant:"
    assert (choice.message.role, choice.message.content) == ("assistant", " 1000 1001 1002")
    assert (choice.finish_reason, answer.usage.completion_tokens) == ("length", 3)


def test_a_stream_begins_with_the_role(site: Any) -> None:
    """The first event of a choice names the role, the last why it ended."""
    choices = [event.choices[0] for event in _chat(site, stream=True)]
    assert [each.delta.role for each in choices] == ["assistant", None, None, None]
    assert "".join(each.delta.content or "" for each in choices) == " 1000 1001 1002"
    assert [each.finish_reason for each in choices] == [None, None, None, "length"]


def test_streamed_choices(site: Any) -> None:
    """Each of several answers begins with its role and has its own end."""
    choices = [event.choices[0] for event in _chat(site, stream=True, n=2)]
    roles = [each.index for each in choices if each.delta.role]
    ends = [each.index for each in choices if each.finish_reason]
    assert (sorted(roles), sorted(ends)) == ([0, 1], [0, 1])


def test_streamed_usage(site: Any) -> None:
    """A wanted usage comes with the last event, and every event before says it is to come."""
    events = list(_chat(site, stream=True, stream_options={"include_usage": True}))
    assert all("usage" in event.model_fields_set for event in events)
    assert [event.usage is None for event in events] == [True] * 4 + [False]


def test_logprobs(site: Any) -> None:
    """Each token has its logprob, its bytes and the likely ones at its place."""
    scores = _chat(site, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [each.token for each in scores] == [" 1000", " 1001", " 1002"]
    assert scores[0].logprob == pytest.approx(-1.0)
    assert bytes(scores[0].bytes) == b" 1000"
    assert [each.token for each in scores[0].top_logprobs] == [" 1000", " 901"]


def test_logprobs_without_alternatives(site: Any) -> None:
    """Logprobs alone name no other tokens."""
    scores = _chat(site, logprobs=True).choices[0].logprobs.content
    assert [each.top_logprobs for each in scores] == [[], [], []]


def test_a_character_split_over_tokens(start: Any) -> None:
    """Text never has half a character, and the bytes of its tokens are their own."""
    site = start()
    for at, byte in enumerate("🙂".encode()):
        site.plane.faults.at_token("r", at, fault=RowFault(token=byte))
    wishes = {"max_completion_tokens": 4, "logprobs": True, "extra_body": {"request_id": "r"}}
    choices = [event.choices[0] for event in _chat(site, stream=True, **wishes)]
    assert [each.delta.content for each in choices if each.delta.content] == ["🙂"]
    scores = [score for each in choices if each.logprobs for score in each.logprobs.content]
    assert b"".join(bytes(score.bytes) for score in scores).decode() == "🙂"
    assert scores[0].token == "bytes:\\xf0"


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan"), -1e30])
def test_a_logprob_without_a_number(start: Any, logprob: float) -> None:
    """Minus infinity and what is no number are told as -9999."""
    site = start()
    site.plane.faults.at_token("r", 0, fault=RowFault(logprob=logprob))
    scores = _chat(site, logprobs=True, extra_body={"request_id": "r"}).choices[0].logprobs
    assert scores.content[0].logprob == -9999.0


def test_content_in_parts(site: Any) -> None:
    """Content may come in parts of text, and a developer speaks for the system."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    _chat(site, messages=[{"role": "developer", "content": parts}])
    assert _prompt_text(site) == "system: ab\nassistant:"


def test_a_stop_string(site: Any) -> None:
    """The answer ends before a stop string, which is named."""
    (choice,) = _chat(site, stop=["2"], max_completion_tokens=100).choices
    assert (choice.message.content, choice.finish_reason) == (" 1000 1001 100", "stop")
    assert choice.stop_reason == "2"


def test_without_a_budget_the_context_is_the_limit(start: Any) -> None:
    """A chat without max_tokens runs until the context is full."""
    answer = _chat(start(), max_completion_tokens=None)
    assert answer.usage.total_tokens == 512


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS}, "tools"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_no_plugin_offers_is_refused(site: Any, wish: dict[str, Any], param: str) -> None:
    """A form of answer that nothing can enforce is refused, never ignored."""
    with pytest.raises(openai.BadRequestError) as refused:
        _chat(site, **wish)
    assert refused.value.param == param


def test_free_text_needs_no_plugin(site: Any) -> None:
    """The form `text` is what every answer has."""
    answer = _chat(site, response_format={"type": "text"})
    assert answer.choices[0].finish_reason == "length"


class Formed(Plugin):
    """Takes every form of answer, and leaves the tokens as they are."""

    name = "formed"
    features = ("json_schema", "structural_tag", "regex")


@pytest.fixture
def formed(start: Any) -> Any:
    """A server whose engine has such a plugin."""
    return start(plugins=(Formed,))


def _says(site: Any, text: str) -> dict[str, Any]:
    """Let the next answer be this text; returns the wishes to ask for it with."""
    for at, byte in enumerate(text.encode()):
        site.plane.faults.at_token("r", at, fault=RowFault(token=byte))
    end = {"stop_token_ids": [1000 + len(text.encode())], "request_id": "r"}
    return {"max_completion_tokens": None, "extra_body": end}


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, SCHEMA),
    ],
)
def test_a_form_is_a_feature_of_a_plugin(formed: Any, form: Any, schema: Any) -> None:
    """Where an engine has a plugin for it, the form goes to it as the feature json_schema."""
    _chat(formed, response_format=form)
    assert formed.client.sent[-1].features == {"json_schema": schema}


def test_a_field_of_a_plugin(formed: Any) -> None:
    """A field that an engine announces as a feature goes to it by its name."""
    _chat(formed, extra_body={"regex": "a+"})
    assert formed.client.sent[-1].features == {"regex": "a+"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called(formed: Any, stream: bool) -> None:
    """The answer of a named tool is its arguments, held to its schema."""
    choice = {"type": "function", "function": {"name": "add"}}
    wishes = _says(formed, '{"a": 5}')
    (called, reason) = _called(
        _chat(formed, tools=TOOLS, tool_choice=choice, stream=stream, **wishes)
    )
    assert (called, reason) == ([("add", '{"a": 5}')], "tool_calls")
    assert formed.client.sent[-1].features == {"json_schema": SCHEMA}


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_tool_is_called(formed: Any, stream: bool) -> None:
    """A required choice is a list of calls."""
    said = '[{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]'
    wishes = _says(formed, said)
    called, reason = _called(
        _chat(formed, tools=TOOLS, tool_choice="required", stream=stream, **wishes)
    )
    assert (called, reason) == ([("add", '{"a":1}'), ("now", "{}")], "tool_calls")
    schema = formed.client.sent[-1].features["json_schema"]
    names = [each["properties"]["name"]["const"] for each in schema["items"]["anyOf"]]
    assert (schema["type"], names) == ("array", ["add", "now"])


@pytest.mark.parametrize(
    ("choice", "place"),
    [("required", "#/items/anyOf/0/properties/arguments"), ("auto", "#/properties/arguments")],
)
def test_references_of_a_tool_lead_where_they_did(formed: Any, choice: str, place: str) -> None:
    """A tool's schema stands inside another one, and so do the places that it names."""
    point = {"type": "object", "properties": {"next": {"$ref": "#"}, "x": {"$ref": "#/$defs/x"}}}
    own = {**point, "$defs": {"x": {"type": "integer"}, "far": {"$ref": "http://a/b#/c"}}}
    tools = [{"type": "function", "function": {"name": "go", "parameters": own}}]
    _chat(formed, tools=tools, tool_choice=choice)
    features = json.dumps(formed.client.sent[-1].features)
    found = re.findall(r'"\$ref": "([^"]*)"', features)
    assert found == [place, f"{place}/$defs/x", "http://a/b#/c"]


def test_a_tool_nested_too_deeply_is_refused(formed: Any) -> None:
    """The server goes on."""
    deep: dict[str, Any] = {}
    for _ in range(700):
        deep = {"items": deep}
    tools = [{"type": "function", "function": {"name": "go", "parameters": deep}}]
    with pytest.raises(openai.BadRequestError, match="nested too deeply"):
        _chat(formed, tools=tools, tool_choice="required")


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_may_be_called(formed: Any, stream: bool) -> None:
    """With a free choice, text and calls between marks are told apart."""
    said = 'Let <me> see. <tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    answer = _chat(formed, tools=TOOLS, stream=stream, **_says(formed, said))
    events = list(answer) if stream else answer
    assert _called(events) == ([("add", '{"a":2}')], "tool_calls")
    assert _text(events) == "Let <me> see. "
    tag = formed.client.sent[-1].features["structural_tag"]
    assert tag["format"]["triggers"] == ["<tool_call>"]


@pytest.mark.parametrize("parallel", [None, True, False])
def test_calls_that_may_not_be_parallel(formed: Any, parallel: bool | None) -> None:
    """Then the plugin is asked for one call at most."""
    wishes = {} if parallel is None else {"parallel_tool_calls": parallel}
    is_single = parallel is False
    _chat(formed, tools=TOOLS, tool_choice="required", **wishes)
    assert formed.client.sent[-1].features["json_schema"].get("maxItems") == (
        1 if is_single else None
    )
    _chat(formed, tools=TOOLS, **wishes)
    form = formed.client.sent[-1].features["structural_tag"]["format"]
    assert form.get("stop_after_first", False) is is_single


def test_a_tool_need_not_be_called(formed: Any) -> None:
    """An answer without a call is text, and ends as text does; so is a mark without a call."""
    for said in ("No. <tool", "Use <tool_call>x</tool_call> for that"):
        answer = _chat(formed, tools=TOOLS, **_says(formed, said))
        assert (_text(answer), answer.choices[0].finish_reason) == (said, "stop")


def test_tools_that_are_not_wanted(site: Any) -> None:
    """With the choice none, tools need no plugin and calls are not looked for."""
    answer = _chat(site, tools=TOOLS, tool_choice="none")
    assert (answer.choices[0].message.tool_calls, answer.choices[0].finish_reason) == (
        None,
        "length",
    )


@pytest.mark.parametrize(
    "wish",
    [
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "required"},
    ],
)
def test_a_tool_that_is_not_there(formed: Any, wish: dict[str, Any]) -> None:
    """A choice must be among the tools."""
    with pytest.raises(openai.BadRequestError) as refused:
        _chat(formed, **wish)
    assert refused.value.param == "tool_choice"


def test_one_form_at_a_time(formed: Any) -> None:
    """An answer cannot be shaped by a form and by tools at once."""
    with pytest.raises(openai.BadRequestError) as refused:
        _chat(formed, tools=TOOLS, response_format={"type": "json_object"})
    assert refused.value.param == "response_format"


def _text(answer: Any) -> str:
    """The text of an answer or of its events."""
    if not isinstance(answer, list):
        return answer.choices[0].message.content or ""
    return "".join(event.choices[0].delta.content or "" for event in answer)


def _called(answer: Any) -> tuple[list[tuple[str, str]], str | None]:
    """The calls of an answer or of its events, and why it ended."""
    if hasattr(answer, "choices"):
        calls = answer.choices[0].message.tool_calls
        found = [(call.function.name, call.function.arguments) for call in calls]
        return found, answer.choices[0].finish_reason
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    reason = None
    for choice in (event.choices[0] for event in answer):
        reason = choice.finish_reason
        for call in choice.delta.tool_calls or ():
            names[call.index] = call.function.name or names[call.index]
            arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
    return [(names[index], arguments[index]) for index in names], reason

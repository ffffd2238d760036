# SPDX-License-Identifier: MIT
"""What a model thinks is told apart from what it answers, whole and streamed."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tokenspeed_core.testing.scripted_options import RowFault
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_hookspecs import Plugin
from tokenspeed_openai.options import Options, problems
from tokenspeed_openai.reasoning import ThoughtReader

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
NAMED = {"type": "function", "function": {"name": "add"}}
GAP = "\n\n"
READ: dict[str, tuple[str, bool, str, str]] = {
    "opened by the model": ("<think>\nhm</think>\n\nyes", False, "\nhm", "yes"),
    "opened by the template": ("hm</think>\n\nyes", True, "hm", "yes"),
    "opened by both": ("<think>hm</think>\n\nyes", True, "hm", "yes"),
    "no thinking": ("yes <think>", False, "", "yes <think>"),
    "cut in thinking": ("hm </thi", True, "hm </thi", ""),
    "cut in the first mark": ("<thi", False, "", "<thi"),
    "no thought": ("</think>\n\nyes", True, "", "yes"),
    "half a gap": ("hm</think>\nyes", True, "hm", "\nyes"),
    "more than a gap": ("hm</think>\n\n\nyes", True, "hm", "\nyes"),
    "cut in the gap": ("hm</think>\n", True, "hm", "\n"),
    "the mark again": ("a</think>\n\nb</think>c", True, "a", "b</think>c"),
    "nothing": ("", True, "", ""),
}


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("case", READ)
def test_a_text_is_read_alike_in_pieces_of_any_size(case: str, size: int) -> None:
    """Thinking ends at the first end mark; one empty line behind it is no part of the answer."""
    text, is_inside, thought, answer = READ[case]
    reader = ThoughtReader(GAP, is_inside=is_inside)
    pieces = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    read = [reader.push(each, is_last=False) for each in pieces[:-1]]
    read.append(reader.push(pieces[-1], is_last=True))
    assert "".join(each for each, _ in read) == thought
    assert "".join(each for _, each in read) == answer


def test_an_unknown_parser_is_told() -> None:
    """Before anything starts, with the names of those there are."""
    (problem,) = problems(Options(port=0, reasoning_parser="nobody"))
    assert "must be one of deepseek_r1, " in problem
    assert "'nobody'" in problem


class Thoughtful(Plugin):
    """Takes constrained answers behind thinking, and leaves the tokens as they are."""

    name = "thoughtful"
    features = ("json_schema", "structural_tag", "regex", "reasoning")


class Thoughtless(Plugin):
    """Takes constrained answers, and knows no thinking."""

    name = "thoughtless"
    features = ("json_schema",)


def _says(site: Any, text: str) -> dict[str, Any]:
    """Let the next answer be this text; returns the wishes to ask for it with."""
    for at, byte in enumerate(text.encode()):
        site.plane.faults.at_token("r", at, fault=RowFault(token=byte))
    end = {"stop_token_ids": [1000 + len(text.encode())], "request_id": "r"}
    return {"extra_body": end}


def _ask(site: Any, said: str, **wishes: Any) -> Any:
    """An answer with this text: its thinking, its content, its calls' arguments."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    extra = {**_says(site, said)["extra_body"], **wishes.pop("extra", {})}
    answer = site.openai().chat.completions.create(**body, **wishes, extra_body=extra)
    if not wishes.get("stream"):
        message = answer.choices[0].message
        calls = [call.function.arguments for call in message.tool_calls or ()]
        return getattr(message, "reasoning_content", None), message.content, "".join(calls) or None
    deltas = [event.choices[0].delta for event in answer]
    thoughts = "".join(getattr(each, "reasoning_content", None) or "" for each in deltas)
    content = "".join(each.content or "" for each in deltas)
    calls = [call.function.arguments for each in deltas for call in each.tool_calls or ()]
    return thoughts or None, content or None, "".join(calls) or None


@pytest.fixture
def qwen(start: Any) -> Any:
    """A server of a model that thinks as Qwen 3 does, with a plugin that knows of it."""
    return start(plugins=(Thoughtful,), reasoning_parser="qwen3")


def _sent(site: Any) -> Any:
    return dict(site.client.sent[-1].features)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_no_content(qwen: Any, stream: bool) -> None:
    """It comes in a field of its own, as from SGLang and DeepSeek; a plain request needs nothing
    of a plugin."""
    found = _ask(qwen, "<think>\nhm\n</think>\n\n5", stream=stream)
    assert found == ("\nhm\n", "5", None)
    assert _sent(qwen) == {}


@pytest.mark.parametrize("stream", [False, True])
def test_a_constrained_answer_comes_behind_thinking(qwen: Any, stream: bool) -> None:
    """The plugin is told whose thinking comes first, and the answer begins inside of it."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    found = _ask(qwen, "hm</think>\n\n5", stream=stream, response_format=form)
    assert found == ("hm", "5", None)
    assert _sent(qwen) == {"json_schema": {"type": "integer"}, "reasoning": "qwen3"}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_come_behind_thinking(qwen: Any, stream: bool) -> None:
    """What is thought is no argument, and thinking that never ends is no call."""
    wishes = {"tools": TOOLS, "tool_choice": NAMED, "stream": stream}
    assert _ask(qwen, "hm {", **wishes) == ("hm {", None, None)
    assert _ask(qwen, 'hm</think>\n\n{"a": 1}', **wishes) == ("hm", None, '{"a": 1}')
    assert _sent(qwen)["reasoning"] == "qwen3"


OFF: dict[str, dict[str, Any]] = {
    "by the template": {"chat_template_kwargs": {"enable_thinking": False}},
    "by its effort": {"reasoning_effort": "none"},
}


@pytest.mark.parametrize("way", OFF)
def test_thinking_that_is_off(qwen: Any, way: str) -> None:
    """The plugin is told, and all of the text is answer."""
    found = _ask(qwen, "5", extra={**OFF[way], "regex": "5"})
    assert found == (None, "5", None)
    assert _sent(qwen) == {"regex": "5", "reasoning": False}


def test_thinking_that_is_off_is_told_to_an_engine_with_a_parser_of_its_own(start: Any) -> None:
    """Also where this server reads no thinking."""
    site = start(plugins=(Thoughtful,))
    _ask(site, "5", extra={**OFF["by the template"], "regex": "5"})
    assert _sent(site) == {"regex": "5", "reasoning": False}
    _ask(site, "5", extra={"regex": "5"})
    assert _sent(site) == {"regex": "5"}


def test_a_family_that_thinks_only_when_asked(start: Any) -> None:
    """DeepSeek V3.1's template has a switch that is off."""
    site = start(plugins=(Thoughtful,), reasoning_parser="deepseek_v31")
    assert _ask(site, "5", extra={"regex": "5"}) == (None, "5", None)
    assert _sent(site)["reasoning"] is False
    thinking = {"chat_template_kwargs": {"thinking": True}, "regex": "5"}
    assert _ask(site, "hm</think>5", extra=thinking) == ("hm", "5", None)
    assert _sent(site)["reasoning"] == "deepseek_v31"


def test_a_plugin_that_knows_no_thinking_constrains_from_the_start(start: Any) -> None:
    """Nothing is told to it, and nothing is read as thinking."""
    site = start(plugins=(Thoughtless,), reasoning_parser="deepseek_r1")
    found = _ask(site, "{}", response_format={"type": "json_object"})
    assert found == (None, "{}", None)
    assert _sent(site) == {"json_schema": {"type": "object"}}


def test_what_clients_want_of_thinking(qwen: Any) -> None:
    """vLLM's field leaves it out, SGLang's leaves it where it is."""
    said = "<think>hm</think>\n\n5"
    assert _ask(qwen, said, extra={"include_reasoning": False}) == (None, "5", None)
    assert _ask(qwen, said, extra={"separate_reasoning": False}) == (None, said, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_mark_that_is_a_special_token(start: Any, stream: bool) -> None:
    """It is read, though texts leave such tokens out."""
    tokenizer = small_tokenizer(marks=("</think>",), special_marks=True)
    site = start(tokenizer=tokenizer, reasoning_parser="deepseek_r1")
    said = "hm\x005"  # the mark takes the token of this byte
    assert _ask(site, said, stream=stream) == ("hm", "5", None)


def test_the_effort_is_a_variable_of_the_template(start: Any) -> None:
    """So are the client's own, which come before it; earlier thinking is part of a message."""
    template = (
        "{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}"
        "{{ reasoning_effort }}|{{ enable_thinking }}|{{ thinking }}"
    )
    site = start(tokenizer=small_tokenizer(template=template))
    messages = [{"role": "assistant", "content": "5", "reasoning_content": "hm"}]
    for extra, said in (
        ({"reasoning_effort": "low"}, "hm|low||"),
        ({"reasoning_effort": "none"}, "hm|none|False|False"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "hm|none|True|False",
        ),
    ):
        body = {"model": "scripted", "messages": messages, "max_tokens": 1}
        site.openai().chat.completions.create(**body, extra_body=extra)
        assert bytes(site.client.sent[-1].prompt_ids).decode() == said


def test_text_with_tags_is_a_form(qwen: Any) -> None:
    """It goes to the plugin as it came, and thinking is part of its free text."""
    form = {"type": "structural_tag", "format": {"type": "any_text"}}
    assert _ask(qwen, "<think>hm</think>\n\n5", response_format=form) == ("hm", "5", None)
    assert _sent(qwen)["structural_tag"] == {"format": {"type": "any_text"}}


def test_text_with_tags_needs_a_plugin(start: Any) -> None:
    """One that constrains JSON does not do."""
    site = start(plugins=(Thoughtless,))
    with pytest.raises(openai.BadRequestError, match="structural_tag"):
        _ask(site, "5", response_format={"type": "structural_tag", "format": {}})

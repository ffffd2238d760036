# SPDX-License-Identifier: MIT
"""Structural tags as grammars: what may be said around and inside of their tags."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.llguidance_backend import LLGuidanceBackend

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TEXT = {"type": "any_text"}
CALLS = [
    {"begin": "<f=a>", "content": NUMBER, "end": "</f>"},
    {"begin": "<f=b>", "content": {"type": "regex", "pattern": "x/y"}, "end": "</f>"},
]


def _const(text: str) -> dict[str, str]:
    return {"type": "const_string", "value": text}


def _tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _triggered(**more: bool) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": CALLS, **more}


def _separated(**more: bool) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": CALLS, "separator": ";", **more}


FORMATS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "fixed": (_const("ab"), ["ab"], ["a", "abc"]),
    "tag": (_tag("<t>", NUMBER, "</t>"), ["<t>12</t>"], ["<t>x</t>", "<t>1"]),
    "any JSON": (_tag("<", {"type": "json_schema"}, ">"), ['<{"a": [\n 1]}>'], ["<[\n\n1]>"]),
    "tag with two ends": (_tag("(", TEXT, [")", "]"]), ["(a)", "(a]"], ["(a) b", "(a"]),
    "sequence": (_sequence(_const("a"), NUMBER, _const("!")), ["a12!"], ["a12"]),
    "choice": (
        {"type": "or", "elements": [NUMBER, _const("no")]},
        ["7", "no"],
        ["no7"],
    ),
    "EBNF": ({"type": "grammar", "grammar": 'root ::= "a" "b"*'}, ["a", "abb"], ["b"]),
    "optional": ({"type": "optional", "content": _const("a")}, ["", "a"], ["aa"]),
    "star": ({"type": "star", "content": _const("ab")}, ["", "abab"], ["aba"]),
    "plus": ({"type": "plus", "content": _const("ab")}, ["ab", "abab"], [""]),
    "thinking, then JSON": (
        _sequence(_tag("", TEXT, "</think>"), NUMBER),
        ["hm</think>12", "</think>1"],
        ["hm", "hm</think>x", "hm</think>1</think>2"],
    ),
    "calls in a text": (
        _triggered(),
        ["", "hi", "hi <f=a>1</f> and <f=b>x/y</f>", "<f=a>1</f>"],
        ["hi <f=a>x</f>", "<f=c>", "hi <f=a>1"],
    ),
    "at least one call": (_triggered(at_least_one=True), ["hi <f=a>1</f> bye"], ["", "hi"]),
    "one call at most": (
        _triggered(stop_after_first=True),
        ["hi <f=a>1</f>", "hi"],
        ["<f=a>1</f> bye", "<f=a>1</f><f=a>1</f>"],
    ),
    "calls inside a tag": (
        _tag("[", _triggered(), "]"),
        ["[x]", "[<f=a>1</f>]", "[<f=a>1</f> y]"],
        ["[<f=a>x]", "[x"],
    ),
    "separated": (_separated(), ["", "<f=a>1</f>", "<f=a>1</f>;<f=b>x/y</f>"], ["<f=a>1</f>;"]),
    "separated, one at least": (_separated(at_least_one=True), ["<f=a>1</f>"], [""]),
}
WRONG: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "must be JSON"),
    "kind": ({"format": {"type": "xml"}}, "unknown format type 'xml'"),
    "field": ({"format": {"type": "regex"}}, "'pattern' must be a str, got null"),
    "no trigger": (
        {"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b"]},
        "begins with none of the triggers",
    ),
    "text, then a pattern": (
        {"format": _sequence(TEXT, NUMBER)},
        "free text must be followed by a fixed text",
    ),
    "empty": ({"format": {"type": "sequence", "elements": []}}, "must be a list of objects"),
}


def _follows(backend: LLGuidanceBackend, source: Any, text: str) -> bool:
    """Whether a text may be said byte by byte, and then end."""
    matcher = backend.compile("structural_tag", json.dumps(source)).matcher()
    mask = np.zeros((1, 10), dtype=np.int32)
    for byte in text.encode():
        backend.fill([(matcher, 0)], mask)
        if not mask.view(np.uint32)[0, byte >> 5] >> (byte & 31) & 1:
            return False
        assert matcher.accept(byte), matcher.error
    return matcher.can_end


@pytest.mark.parametrize("case", FORMATS)
def test_a_format_says_what_follows(backend: LLGuidanceBackend, case: str) -> None:
    """Inside tags the grammar holds; around them text is free."""
    form, right, wrong = FORMATS[case]
    source = {"type": "structural_tag", "format": form}
    assert [text for text in right if not _follows(backend, source, text)] == []
    assert [text for text in wrong if _follows(backend, source, text)] == []


def test_the_older_form_is_calls_in_a_text(backend: LLGuidanceBackend) -> None:
    """Structures with triggers are free text with tags in it."""
    structure = {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}
    source = {"structures": [structure], "triggers": ["<f="]}
    assert _follows(backend, source, "hi <f=a>1</f> bye")
    assert not _follows(backend, source, "hi <f=a>x</f>")


def test_a_special_token_is_said_as_that_token(backend: LLGuidanceBackend) -> None:
    """A fixed text that is a token of its own is not spelled out."""
    source = {"format": _sequence(_tag("", TEXT, "<|start|>"), _const("a"))}
    matcher = backend.compile("structural_tag", json.dumps(source)).matcher()
    assert [matcher.accept(token) for token in (*b"hm", 318, *b"a")] == [True] * 4
    assert matcher.is_complete


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tag_is_refused(backend: LLGuidanceBackend, case: str) -> None:
    """The reason says what was expected where."""
    source, said = WRONG[case]
    text = source if isinstance(source, str) else json.dumps(source)
    with pytest.raises(GrammarError, match=said):
        backend.compile("structural_tag", text)

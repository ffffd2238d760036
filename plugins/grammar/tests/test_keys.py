# SPDX-License-Identifier: MIT
"""From the features of a request to the name of its grammar."""

from __future__ import annotations

import pytest

from tokenspeed_grammar.keys import GrammarKey, key_of, names_grammar

OBJECT = GrammarKey("json", '{"type": "object"}')
NAMED: dict[str, tuple[dict[str, object], GrammarKey | None]] = {
    "nothing": ({}, None),
    "null": ({"regex": None}, None),
    "another's": ({"tenant": 7}, None),
    "not wanted": ({"json_object": False}, None),
    "text of a schema": ({"json_schema": '{"a": 1}'}, GrammarKey("json", '{"a": 1}')),
    "a schema": ({"json_schema": {"b": 1, "a": "ü"}}, GrammarKey("json", '{"b": 1, "a": "ü"}')),
    "a schema for nothing": ({"json_schema": False}, None),
    "any object": ({"json_object": True}, OBJECT),
    "any object, the old way": ({"json_schema": "$$ANY$$"}, OBJECT),
    "pattern": ({"regex": "a|b"}, GrammarKey("regex", "a|b")),
    "grammar": ({"ebnf": "root ::= x"}, GrammarKey("ebnf", "root ::= x")),
    "tag": ({"structural_tag": {"a": 1}}, GrammarKey("structural_tag", '{"a": 1}')),
    "guided JSON": ({"guided_json": {"a": 1}}, GrammarKey("json", '{"a": 1}')),
    "guided object": ({"guided_json_object": True}, OBJECT),
    "guided pattern": ({"guided_regex": "a|b"}, GrammarKey("regex", "a|b")),
    "guided choice": ({"guided_choice": ["a.b", "(c]"]}, GrammarKey("regex", r"a\.b|\(c\]")),
    "guided grammar": ({"guided_grammar": "root ::= x"}, GrammarKey("ebnf", "root ::= x")),
    "structured": ({"structured_outputs": {"json": None, "regex": "a"}}, GrammarKey("regex", "a")),
    "structured choice": ({"structured_outputs": {"choice": ["a"]}}, GrammarKey("regex", "a")),
}
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "two": ({"regex": "a", "ebnf": "b"}, "only one grammar can be set, got regex, ebnf"),
    "number": ({"regex": 7}, "regex must be a text, got 7"),
    "list": ({"json_schema": [1]}, "json_schema must be a mapping or JSON text"),
    "object": ({"json_object": "yes"}, "json_object must be true or false"),
    "one choice": ({"guided_choice": "a"}, "guided_choice must be a list of texts"),
    "no choice": ({"guided_choice": []}, "guided_choice must be a list of texts"),
    "a number as choice": (
        {"guided_choice": ["a", 7]},
        r"guided_choice\[1\] must be a text, got 7",
    ),
    "two structured": ({"structured_outputs": {"json": {}, "regex": "a"}}, "exactly one of json,"),
    "unknown structured": ({"structured_outputs": {"xml": "a"}}, "json_object.*, got xml"),
    "no structure": ({"structured_outputs": "a"}, "structured_outputs must be a mapping"),
    "no family": (
        {"reasoning": "nobody"},
        "reasoning must be false or one of deepseek_r1, .*nobody",
    ),
    "thinking nobody knows": ({"reasoning": True}, "reasoning must be false or one of"),
    "no JSON": ({"json_schema": {"a": {1}}}, "cannot be written as JSON"),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_feature_names_a_grammar(case: str) -> None:
    """One feature gives one key; the properties of a schema keep their order."""
    features, key = NAMED[case]
    assert key_of(features) == key
    assert names_grammar(features) == (key is not None)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_feature_is_told(case: str) -> None:
    """The error names the feature and what came."""
    features, said = WRONG[case]
    with pytest.raises(ValueError, match=said):
        key_of(features)


WHOSE: dict[str, tuple[dict[str, object], str | None, str | None]] = {
    "nobody's": ({}, None, None),
    "the engine's": ({}, "qwen3", "qwen3"),
    "its own": ({"reasoning": "kimi"}, "qwen3", "kimi"),
    "its own alone": ({"reasoning": "kimi"}, None, "kimi"),
    "on": ({"reasoning": True}, "qwen3", "qwen3"),
    "off": ({"reasoning": False}, "qwen3", None),
    "off, as a flag": ({"reasoning": "off"}, "qwen3", None),
}


@pytest.mark.parametrize("case", WHOSE)
def test_thinking_is_part_of_the_name(case: str) -> None:
    """A request's family comes before the engine's; behind other thinking it is another grammar."""
    features, parser, family = WHOSE[case]
    key = key_of({"regex": "a", **features}, reasoning_parser=parser)
    assert key == GrammarKey("regex", "a", family)


def test_a_structural_tag_is_never_wrapped() -> None:
    """It says itself where free text may stand."""
    key = key_of({"structural_tag": "{}"}, reasoning_parser="qwen3")
    assert key == GrammarKey("structural_tag", "{}")


def test_thinking_alone_names_no_grammar() -> None:
    """There is nothing to hold behind it."""
    assert key_of({"reasoning": "qwen3"}) is None
    assert not names_grammar({"reasoning": "qwen3"})

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
}
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "two": ({"regex": "a", "ebnf": "b"}, "only one of"),
    "number": ({"regex": 7}, "regex must be a text, got 7"),
    "list": ({"json_schema": [1]}, "json_schema must be a mapping or JSON text"),
    "object": ({"json_object": "yes"}, "json_object must be true or false"),
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

# SPDX-License-Identifier: MIT
"""What the default backend allows, refuses and says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_grammar.backend import (
    BackendSettings,
    GrammarError,
    Matcher,
    Vocabulary,
    Whitespace,
)
from tokenspeed_grammar.llguidance_backend import LLGuidanceBackend

GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'
FOLLOWED: dict[str, tuple[str, str, list[str], list[str]]] = {
    "pattern": ("regex", "a(b|x)", ["ab", "ax"], ["a", "abc", "b"]),
    "digits": ("regex", r"\d\w/", ["0a/", "9_/"], ["٣a/", "0ü/"]),
    "nothing": ("regex", "", [""], ["a"]),
    "anchors": ("regex", "^ab$", ["ab"], ["^ab$"]),
    "llama.cpp's EBNF": ("ebnf", GBNF, ["yes", "no"], ["yesno", "y"]),
    "Lark": ("ebnf", LARK, ["yes", "no"], ["yesno", "y"]),
    "schema": ("json", '{"type": "integer", "minimum": 10}', ["10", "99"], ["9", "x", "1.5"]),
    "spaces": ("json", '{"type": "array"}', ["[1,2]", "[\n1, 2]"], ["[1 2]"]),
    "anything": ("json", " true", ["1", '{"a": []}'], ["x"]),
    "unicode": ("json", '{"enum": ["ü€"]}', ['"ü€"'], ['"u"']),
}
REFUSED: dict[str, tuple[str, str, str]] = {
    "unclosed": ("regex", "([a-z", "unclosed character class"),
    "look-ahead": ("regex", "(?=a)b", "look-ahead"),
    "not JSON": ("json", "{", "at line 1"),
    "no schema": ("json", "[]", "must be an object or a boolean"),
    "type": ("json", '{"type": "foo"}', "Invalid type: foo"),
    "keyword": ("json", '{"type": "string", "not": {}}', "not"),
    "never": ("json", "false", "nothing follows the schema false"),
    "reference": ("json", '{"$ref": "http://example.com/s"}', "example.com"),
    "rule": ("ebnf", "start: foo", 'unknown name: "foo"'),
    "EBNF": ("ebnf", "root ::= (", "."),
    "tag": ("structural_tag", "7", "must be a JSON object"),
}


def follows(backend: LLGuidanceBackend, matcher: Matcher, text: str) -> bool:
    """Whether a text may be said byte by byte and then end."""
    mask = np.zeros((1, 10), dtype=np.int32)
    for byte in text.encode():
        backend.fill([(matcher, 0)], mask)
        if not mask.view(np.uint32)[0, byte >> 5] >> (byte & 31) & 1:
            return False
        assert matcher.accept(byte)
    return matcher.can_end


@pytest.mark.parametrize("case", FOLLOWED)
def test_a_text_follows_its_grammar(backend: LLGuidanceBackend, case: str) -> None:
    """The masks let through what the grammar says, as a whole, and nothing else."""
    kind, source, right, wrong = FOLLOWED[case]
    compiled = backend.compile(kind, source)
    assert [text for text in right if not follows(backend, compiled.matcher(), text)] == []
    assert [text for text in wrong if follows(backend, compiled.matcher(), text)] == []


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_source_is_refused_with_its_reason(backend: LLGuidanceBackend, case: str) -> None:
    """The reason is the library's, short and on one line."""
    kind, source, said = REFUSED[case]
    with pytest.raises(GrammarError, match=said) as raised:
        backend.compile(kind, source)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 600


SPACED = ["[1,2]", "[1, 2]", "[\n    1,\n    2\n]", "[\n\n\n1]", "[" + " " * 40 + "1]"]


@pytest.mark.parametrize(("whitespace", "allowed"), [("none", 1), ("some", 3), ("any", 5)])
def test_whitespace_is_bounded(vocabulary: Vocabulary, whitespace: str, allowed: int) -> None:
    """None at all, that of usual JSON, or any: so many of the texts may be said."""
    backend = LLGuidanceBackend(vocabulary, BackendSettings(Whitespace(whitespace)))
    compiled = backend.compile("json", '{"type": "array"}')
    said = [follows(backend, compiled.matcher(), text) for text in SPACED]
    assert said == [True] * allowed + [False] * (5 - allowed)


def test_end_tokens_follow_where_a_text_can_end(backend: LLGuidanceBackend) -> None:
    """The mask of a text that can end has the end token; no mask has another special one."""
    matcher = backend.compile("regex", "ab*").matcher()
    mask = np.zeros((2, 10), dtype=np.int32)
    backend.fill([(matcher, 0)], mask)
    assert matcher.accept(ord("a"))
    backend.fill([(matcher, 1)], mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    assert [np.flatnonzero(row).tolist() for row in bits] == [[97], [98, 319]]


def test_special_tokens_are_no_text(backend: LLGuidanceBackend) -> None:
    """What marks a start or an end cannot be said inside a string, however it is spelled."""
    matcher = backend.compile("regex", "(.|\n)*").matcher()
    mask = np.zeros((1, 10), dtype=np.int32)
    backend.fill([(matcher, 0)], mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert bits[318:320].tolist() == [0, 1]
    assert bits[ord("<")] == 1


def test_many_rows_are_the_same_as_one_by_one(backend: LLGuidanceBackend) -> None:
    """Threads that share a batch fill each row as it would be filled alone."""
    compiled = [backend.compile("regex", f"{chr(97 + n)}+") for n in range(20)]
    together, alone = np.zeros((2, 20, 10), dtype=np.int32)
    backend.fill([(each.matcher(), row) for row, each in enumerate(compiled)], together)
    for row, each in enumerate(compiled):
        backend.fill([(each.matcher(), row)], alone)
    assert (together == alone).all()


def test_matchers_of_one_grammar_are_apart(backend: LLGuidanceBackend) -> None:
    """A request's place in its grammar is its own."""
    compiled = backend.compile("regex", "ab")
    first, second = compiled.matcher(), compiled.matcher()
    assert first.accept(ord("a"))
    assert first.accept(ord("b"))
    assert (first.is_complete, second.is_complete) == (True, False)


def test_a_token_that_does_not_follow_is_refused_for_good(backend: LLGuidanceBackend) -> None:
    """The matcher says why, and is of no use any more."""
    matcher = backend.compile("regex", "ab").matcher()
    assert not matcher.accept(ord("x"))
    assert matcher.error
    assert not matcher.is_complete


def test_a_padded_vocabulary_has_no_more_texts() -> None:
    """Ids of the model that the tokenizer does not know may never follow."""
    padded = Vocabulary(small_tokenizer(vocab_size=300), 352, (299,))
    backend = LLGuidanceBackend(padded, BackendSettings())
    mask = np.zeros((1, padded.mask_words), dtype=np.int32)
    backend.fill([(backend.compile("regex", "(.|\n)*").matcher(), 0)], mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert bits[300:].tolist() == [0] * 52
    assert bits[ord("a")] == 1


def test_a_model_without_an_end_token_has_grammars() -> None:
    """A text is complete when nothing can follow."""
    vocabulary = Vocabulary(small_tokenizer(vocab_size=320), 320, ())
    backend = LLGuidanceBackend(vocabulary, BackendSettings())
    matcher = backend.compile("regex", "a").matcher()
    mask = np.zeros((1, vocabulary.mask_words), dtype=np.int32)
    backend.fill([(matcher, 0)], mask)
    assert matcher.accept(ord("a"))
    assert matcher.is_complete


HOSTILE = {
    "deep": "[" * 3000 + "]" * 3000,
    "wide choice": json.dumps({"anyOf": [{"const": "x" * n} for n in range(3000)]}),
    "product": json.dumps(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"k{i}{j}": {}}} for j in range(6)]} for i in range(8)
            ]
        }
    ),
    "long strings": json.dumps({"type": "string", "minLength": 10**9}),
    "many items": json.dumps({"type": "array", "items": {}, "minItems": 10**9}),
    "multiples": json.dumps({"type": "integer", "multipleOf": 9999991}),
    "multiples in disguise": '{"type": "integer", "multiple\\u004ff": 9999991}',
    "pattern": json.dumps({"type": "string", "pattern": "^((a{1,500}){1,500}){1,500}$"}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_schema_costs_little(backend: LLGuidanceBackend, case: str) -> None:
    """It is refused, or it compiles and its first mask is there; neither takes the process."""
    try:
        compiled = backend.compile("json", HOSTILE[case])
    except GrammarError:
        return
    mask = np.zeros((1, 10), dtype=np.int32)
    backend.fill([(compiled.matcher(), 0)], mask)
    assert mask.any()


NOT_IMPLEMENTED: dict[str, object] = {
    "not": {},
    "if": {},
    "then": {},
    "else": {},
    "uniqueItems": True,
    "contains": {},
    "minContains": 1,
    "maxContains": 1,
    "propertyNames": {},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "oneOf": [{"type": "integer"}, {"type": "number"}],
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
    "format": "regex",
}


@pytest.mark.parametrize("keyword", NOT_IMPLEMENTED)
def test_a_keyword_that_is_not_implemented_is_refused(
    backend: LLGuidanceBackend, keyword: str
) -> None:
    """No assertion of JSON Schema is passed over: the text would not follow the schema."""
    schema = {"type": ["string", "array", "object"], keyword: NOT_IMPLEMENTED[keyword]}
    with pytest.raises(GrammarError):
        backend.compile("json", json.dumps(schema))

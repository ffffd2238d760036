# SPDX-License-Identifier: MIT
"""The other backend, where it is installed: what it compiles means what the default's means."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest

from tokenspeed_grammar.backend import (
    Backend,
    BackendSettings,
    CompiledGrammar,
    GrammarError,
    Vocabulary,
    Whitespace,
    load_backend,
)

pytest.importorskip("xgrammar", reason="an extra: pip install tokenspeed-grammar[xgrammar]")

SCHEMAS = json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))
TEXTS, LONGEST = 3, 150
# What the library does not implement; the default does.
NOT_DONE = {"multiple", "pattern properties"}
GRAMMARS = {
    "pattern": ("regex", "a(b|x)[0-9]{2,4}"),
    "llama.cpp's EBNF": ("ebnf", 'root ::= "yes" | "no" root'),
    "Lark": ("ebnf", 'start: "yes" | "no"'),
    "a tag": (
        "structural_tag",
        json.dumps(
            {
                "format": {
                    "type": "tag",
                    "begin": "<a>",
                    "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
                    "end": "</a>",
                }
            }
        ),
    ),
}
REFUSED = {
    "bad JSON": ("json", "{", "must be JSON"),
    "an unclosed class": ("regex", "[a", ""),
    "a repetition that takes the process": ("regex", "a{200}", "repeated 200 times"),
    "a keyword": ("json", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    "no type": ("json", '{"minimum": 3}', "without a type"),
    "beside a choice": ("json", '{"anyOf": [{}], "type": "null"}', "beside anyOf"),
    "a pattern with quotes": ("json", '{"type": "string", "pattern": "^\\"$"}', "JSON escapes"),
    "an open pattern": ("json", '{"type": "string", "pattern": "a"}', "between ^ and $"),
    "a name nobody described": ("json", '{"type": "object", "required": ["a"]}', "required, a too"),
    "in a tag": (
        "structural_tag",
        '{"format": {"type": "json_schema", "json_schema": {"not": {}}}}',
        "not",
    ),
}


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def pair(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> tuple[Backend, Backend]:
    """One backend that says texts, and the other one, which judges them."""
    settings = BackendSettings(Whitespace.NONE)
    said = load_backend(request.param)(vocabulary, settings)
    other = {"llguidance": "xgrammar", "xgrammar": "llguidance"}[request.param]
    return said, load_backend(other)(vocabulary, settings)


@pytest.fixture(scope="module")
def xgrammar(vocabulary: Vocabulary) -> Backend:
    """The backend that is tested."""
    return load_backend("xgrammar")(vocabulary, BackendSettings())


def drawn(backend: Backend, compiled: CompiledGrammar, seed: int) -> bytes | None:
    """A text drawn from a grammar's masks, None if it gets too long; the tokens are bytes."""
    source, matcher, text = random.Random(seed), compiled.matcher(), bytearray()
    mask = np.zeros((1, 10), dtype=np.int32)
    while len(text) < LONGEST:
        backend.fill([(matcher, 0)], mask)
        assert matcher.error is None, f"{matcher.error} after {text!r}"
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:256])
        if matcher.can_end and (not len(bits) or source.random() < 0.5):
            return bytes(text)
        token = int(source.choice(bits.tolist()))
        assert matcher.accept(token)
        text.append(token)
    return None


def follows(compiled: CompiledGrammar, text: bytes) -> bool:
    """Whether a text may be said and then end."""
    matcher = compiled.matcher()
    return all(matcher.accept(byte) for byte in text) and matcher.can_end


@pytest.mark.parametrize("name", sorted(SCHEMAS.keys() - NOT_DONE))
def test_both_say_the_same_of_a_schema(pair: tuple[Backend, Backend], name: str) -> None:
    """What one of them says is valid, and the other one would say it too."""
    source = json.dumps(SCHEMAS[name])
    check = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    says, judges = (backend.compile("json", source) for backend in pair)
    for seed in range(TEXTS):
        text = drawn(pair[0], says, seed)
        if text is not None:
            value = json.loads(text)
            assert check.is_valid(value), text
            # The default says -0 and escapes in more ways.
            usual = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            assert follows(judges, usual.encode()), text


@pytest.mark.parametrize("case", GRAMMARS)
def test_both_say_the_same_of_a_grammar(pair: tuple[Backend, Backend], case: str) -> None:
    """What one of them says the other one would say too."""
    says, judges = (backend.compile(*GRAMMARS[case]) for backend in pair)
    for seed in range(TEXTS):
        text = drawn(pair[0], says, seed)
        if text is not None:
            assert follows(judges, text), text


@pytest.mark.parametrize("name", sorted(NOT_DONE))
def test_what_it_does_not_implement_is_refused(xgrammar: Backend, name: str) -> None:
    """Nothing is passed over."""
    with pytest.raises(GrammarError):
        xgrammar.compile("json", json.dumps(SCHEMAS[name]))


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_source_is_refused_with_its_reason(xgrammar: Backend, case: str) -> None:
    """The reason is on one line, and does not name places in the library's source."""
    kind, source, said = REFUSED[case]
    with pytest.raises(GrammarError) as raised:
        xgrammar.compile(kind, source)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert ".cc" not in str(raised.value)


def test_many_rows_are_the_same_as_one_by_one(xgrammar: Backend) -> None:
    """Threads that share a batch fill each row as it would be filled alone."""
    compiled = [xgrammar.compile("regex", f"{chr(97 + n)}+") for n in range(20)]
    together, alone = np.zeros((2, 20, 10), dtype=np.int32)
    xgrammar.fill([(each.matcher(), row) for row, each in enumerate(compiled)], together)
    for row, each in enumerate(compiled):
        xgrammar.fill([(each.matcher(), row)], alone)
    assert (together == alone).all()


def test_a_matcher_knows_where_it_is(xgrammar: Backend) -> None:
    """Whether it can end, whether nothing may follow, and that a token was wrong."""
    matcher = xgrammar.compile("regex", "ab?").matcher()
    assert (matcher.can_end, matcher.is_complete) == (False, False)
    assert matcher.accept(ord("a"))
    assert (matcher.can_end, matcher.is_complete) == (True, False)
    assert matcher.accept(ord("b"))
    assert (matcher.can_end, matcher.is_complete) == (True, True)
    assert not matcher.accept(ord("b"))
    assert matcher.error

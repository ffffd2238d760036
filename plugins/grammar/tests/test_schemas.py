# SPDX-License-Identifier: MIT
"""Outputs under many schemas, drawn at random from a model that says anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from attrs import evolve

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_grammar.plugin import GrammarPlugin

VOCAB = 300
NUM_REQUESTS = 200  # five or six a schema
WORD = {"type": "string", "maxLength": 8}
AGE = {"type": "integer", "minimum": 0, "maximum": 150}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _array(items: Any, most: int = 3, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, **more}


PERSON = _object("name", "age", name=WORD, age=AGE)
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": PERSON,
    "optional": _object("a", a=AGE, b=WORD, c={"type": "boolean"}),
    "nested": _object("x", x=_object("y", y=_object("z", z=AGE))),
    "empty": _object(),
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "two types": {"type": ["boolean", "null"]},
    "constant": {"const": {"a": [1, "b", None]}},
    "enum": {"enum": ["red", "green", 3, None, {"a": 1}]},
    "unicode": {"enum": ["grün", "漢字", "🙂", 'quo"te', "back\\slash"]},
    "unicode names": _object("größe", größe={"enum": ["süß"]}),
    "any of": {"anyOf": [AGE, {"enum": ["x"]}, PERSON]},
    "all of": {"allOf": [_object("a", a=AGE)]},
    "array": _array(AGE),
    "array of arrays": _array(_array(AGE, 2), 2),
    "array of objects": _array(PERSON, 2),
    "least items": _array({"type": "boolean"}, 5, minItems=3),
    "tuple": {"type": "array", "prefixItems": [AGE, WORD], "items": False, "minItems": 2},
    "range": {"type": "integer", "minimum": -5, "maximum": 1200},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 70},
    "number": {"type": "number", "minimum": -1.5, "maximum": 2.5},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 999},
    "text length": {"type": "string", "minLength": 2, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{2,4}$"},
    "pattern with choice": {"type": "string", "pattern": "^(yes|no|maybe)$"},
    "pattern in an object": _object("id", id={"type": "string", "pattern": "^x[0-9a-f]{4}$"}),
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "address": {"type": "string", "format": "ipv4"},
    "reference": {"$defs": {"age": AGE}, **_object("a", a={"$ref": "#/$defs/age"})},
    "recursion": {
        "$defs": {"tree": _object("v", v=AGE, next=_array({"$ref": "#/$defs/tree"}, 1))},
        "$ref": "#/$defs/tree",
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^[ab]$": AGE},
        "additionalProperties": False,
    },
    "additional properties": {
        "type": "object",
        "properties": {"a": AGE},
        "additionalProperties": {"type": "null"},
    },
}


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[tuple[str, str]]]:
    """What requests said, and how they ended, by schema; all run in one engine."""
    setup = TorchSetup(
        model=tiny_model(),
        engine={"threads": 1},
        plugins=(GrammarPlugin,),
        tokenizer=small_tokenizer(vocab_size=VOCAB),
    )
    names = [list(SCHEMAS)[number % len(SCHEMAS)] for number in range(NUM_REQUESTS)]
    requests = [
        evolve(
            request(f"{name} {number}", 8, budget=160, seed=number, temperature=1.0),
            features={"json_schema": SCHEMAS[name]},
        )
        for number, name in enumerate(names)
    ]
    with TorchEngine(setup) as engine:
        streams = engine.generate(requests)
    assert setup.tokenizer is not None
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in SCHEMAS}
    for name, stream in zip(names, streams, strict=True):
        found[name].append((setup.tokenizer.decode(stream.tokens), stream.kind or ""))
    return found


def _ended(outputs: dict[str, list[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    for name, said in outputs.items():
        yield from ((name, text) for text, kind in said if kind == "stop")


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_ended_follows_its_schema(
    outputs: dict[str, list[tuple[str, str]]], name: str
) -> None:
    """Each text parses and is valid; none was refused."""
    check = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    assert {kind for _, kind in outputs[name]} <= {"stop", "length"}
    for text in (text for text, kind in outputs[name] if kind == "stop"):
        assert check.is_valid(json.loads(text)), text


def test_most_texts_end(outputs: dict[str, list[tuple[str, str]]]) -> None:
    """Every schema has a text that ended by itself, so that the others say something."""
    ended = list(_ended(outputs))
    assert {name for name, _ in ended} == set(SCHEMAS)
    assert len(ended) >= NUM_REQUESTS * 3 // 4

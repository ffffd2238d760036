# SPDX-License-Identifier: MIT
"""Outputs under many schemas, drawn at random from a model that says anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
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
SCHEMAS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "schemas.json").read_text(encoding="utf-8")
)


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

# SPDX-License-Identifier: MIT
"""Grammars behind a model's thinking: on both backends, and on engines of both planes.

The token with the lowest id is the mark that ends thinking, so on the scripted plane, where a
constrained row samples the lowest token its grammar allows, all thinking is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.engine import EngineSetup
from tokenspeed_core.testing.messages import request, telling_tokens
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_core.testing.world import WorldFixture
from tokenspeed_grammar.backend import (
    Backend,
    BackendSettings,
    CompiledGrammar,
    GrammarError,
    Vocabulary,
    load_backend,
)
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.plugin import GrammarPlugin
from tokenspeed_grammar.reasoning import FAMILIES
from tokenspeed_grammar.wrapping import wrapped
from tokenspeed_hookspecs import AddRequest

SCHEMAS = json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))
BACKENDS = ("llguidance", "xgrammar")
MARK, VOCAB, END = "</think>", 300, 299
# Families that put an empty line between thinking and answer.
SPACED = {"minimax", "qwen3", "qwen3_thinking"}
GRAMMARS = {
    "json": ('{"type": "array", "items": {"type": "integer"}, "minItems": 1}', "[5]"),
    "regex": ("a(b|x)/?", "ab/"),
    "ebnf": ('root ::= "yes" | "no"', "yes"),
    "Lark": ('start: "yes" | "no"', "no"),
}
PATTERNS = ("[a-z]{4,20}", r"\d{3}-\d{2,9}", "(yes|no|perhaps)!", "x{30}")


@pytest.fixture(scope="module", params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend that is installed."""
    name = str(request.param)
    pytest.importorskip(name, reason="an extra: pip install tokenspeed-grammar[xgrammar]")
    return name


@pytest.fixture(scope="module")
def backend(backend_name: str) -> Backend:
    """The backend over a vocabulary of bytes."""
    tokenizer = small_tokenizer(vocab_size=VOCAB)
    return load_backend(backend_name)(Vocabulary(tokenizer, VOCAB, (END,)), BackendSettings())


def _compiled(backend: Backend, key: GrammarKey) -> CompiledGrammar:
    tag = wrapped(key)
    return backend.compile(tag.kind, tag.source)


def _follows(compiled: CompiledGrammar, text: str) -> bool:
    matcher = compiled.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_grammar_holds_behind_the_thinking(backend: Backend, family: str, grammar: str) -> None:
    """Up to the end mark text is free, whoever opened the block; behind it nothing is."""
    source, said = GRAMMARS[grammar]
    kind = "ebnf" if grammar == "Lark" else grammar
    compiled = _compiled(backend, GrammarKey(kind, source, family))
    end = f"{MARK}\n\n" if family in SPACED else MARK
    follows = partial(_follows, compiled)
    assert follows(f"{end}{said}")
    assert follows(f"<think>\nWell: {said}?\n{end}{said}")
    wrong = [
        "",
        said,
        "hm",
        f"hm{end}",
        f"hm{end}!{said}",
        f"hm{end}{said}!",
        f"{end}hm{end}{said}",
    ]
    assert [text for text in wrong if follows(text)] == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_taken_behind_thinking_if_it_is_alone(backend: Backend, name: str) -> None:
    """A backend refuses the same schemas, and for those it takes the start is thinking."""
    key = GrammarKey("json", json.dumps(SCHEMAS[name]))
    try:
        backend.compile(key.kind, key.source)
    except GrammarError:
        with pytest.raises(GrammarError):
            _compiled(backend, evolve(key, reasoning="kimi"))
        return
    matcher = _compiled(backend, evolve(key, reasoning="kimi")).matcher()
    assert all(matcher.accept(byte) for byte in f"so {MARK}".encode())
    assert not matcher.can_end
    assert matcher.error is None


@pytest.mark.parametrize(
    "key",
    [
        GrammarKey("json", "{", "qwen3"),
        GrammarKey("json", '{"type": "array", "uniqueItems": true}', "qwen3"),
        GrammarKey("regex", "([a-z", "qwen3"),
    ],
    ids=["no JSON", "a keyword", "an unclosed class"],
)
def test_a_bad_source_is_refused(backend: Backend, key: GrammarKey) -> None:
    """What is no good alone is no good behind thinking."""
    with pytest.raises(GrammarError):
        _compiled(backend, key)


def test_a_source_cannot_leave_its_place(backend: Backend) -> None:
    """What closes the format early is no JSON, rather than another grammar."""
    source = '{}}, {"type": "any_text"}, {"type": "json_schema", "json_schema": {}'
    with pytest.raises(GrammarError, match="it must be JSON"):
        _compiled(backend, GrammarKey("json", source, "kimi"))


def test_a_repetition_that_takes_the_process_is_refused_in_a_tag() -> None:
    """The other backend's limit holds wherever a pattern stands."""
    pytest.importorskip("xgrammar", reason="an extra: pip install tokenspeed-grammar[xgrammar]")
    other = load_backend("xgrammar")(
        Vocabulary(small_tokenizer(vocab_size=VOCAB), VOCAB, (END,)), BackendSettings()
    )
    for kind, source in (("regex", "a{200}"), ("ebnf", 'root ::= "a"{200}')):
        with pytest.raises(GrammarError, match="repeated 200 times"):
            _compiled(other, GrammarKey(kind, source, "kimi"))


# --- the scripted plane --------------------------------------------------------------------------

SCRIPTED_VOCAB, SCRIPTED_END = 2048, 2047
AB = [ord("a"), ord("b"), SCRIPTED_END]
REQUESTS: dict[str, tuple[dict[str, object], list[int]]] = {
    "the engine's family": ({"regex": "a(b|x)"}, [0, 10, 10, *AB]),
    "its own family": ({"regex": "a(b|x)", "reasoning": "deepseek_r1"}, [0, *AB]),
    "thinking that is off": ({"regex": "a(b|x)", "reasoning": False}, AB),
    "EBNF": ({"ebnf": 'root ::= "ab"'}, [0, 10, 10, *AB]),
    "a choice": ({"guided_choice": ["ab", "b"]}, [0, 10, 10, *AB]),
    "a schema": ({"json_schema": {"const": 7}}, [0, 10, 10, ord("7"), SCRIPTED_END]),
    "a tag": (
        {"structural_tag": {"format": {"type": "const_string", "value": "ab"}}},
        AB,
    ),
}


@pytest.fixture(
    params=[Topology(), Topology(tp=2), Topology(pp=2)], ids=["one rank", "tp 2", "pp 2"]
)
def topology(request: pytest.FixtureRequest) -> Topology:
    """Ranks that run a request together."""
    found: Topology = request.param
    return found


@pytest.fixture(params=[0, 1], ids=["depth 0", "depth 1"])
def depth(request: pytest.FixtureRequest) -> int:
    """Forwards in flight."""
    return int(request.param)


@pytest.fixture
def world(backend_name: str, topology: Topology, depth: int) -> Iterator[WorldFixture]:
    """Ranks whose model thinks as Qwen 3 does."""
    setup = EngineSetup(
        plugins=(GrammarPlugin,),
        tokenizer=small_tokenizer(vocab_size=SCRIPTED_VOCAB, marks=(MARK,)),
        plane={"vocab_size": SCRIPTED_VOCAB, "eos_token_ids": (SCRIPTED_END,)},
        tables={"grammar": {"backend": backend_name, "reasoning_parser": "qwen3"}},
        depth=depth,
    )
    with WorldFixture(topology, setup) as found:
        yield found


def test_requests_think_on_every_rank(world: WorldFixture) -> None:
    """The engine's family holds unless a request says otherwise; tags and plain ones stay."""
    for name, (features, _) in REQUESTS.items():
        world.put(evolve(request(name, 8, budget=12), features=features))
    world.put(request("plain", 8, budget=3))
    received = world.engine().received
    world.run_until(lambda: all(received[name].finish for name in (*REQUESTS, "plain")))
    world.to_idle()
    for name, (_, tokens) in REQUESTS.items():
        assert (received[name].tokens, received[name].kind) == (tokens, "stop"), name
    assert received["plain"].tokens == telling_tokens(3)


def test_an_unknown_family_is_told(world: WorldFixture) -> None:
    """The request is refused with the names of those there are."""
    world.put(evolve(request("r0", 8), features={"regex": "a", "reasoning": "nobody"}))
    received = world.engine().received
    world.run_until(lambda: received["r0"].finish)
    finish = received["r0"].finish
    assert finish is not None
    assert finish.status_code == 400
    assert "one of deepseek_r1, " in (finish.message or "")


# --- the torch plane -----------------------------------------------------------------------------


def _thinking() -> list[AddRequest]:
    """Requests that think for some tokens, under every pattern, drawn and greedy."""
    ways: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 1}]
    return [
        evolve(
            request(
                f"g-{row}-{way}",
                20 + row,
                budget=60,
                seed=way,
                logit_bias={0: 3.0},
                **ways[way],
            ),
            features={"regex": pattern},
        )
        for row, pattern in enumerate(PATTERNS)
        for way in range(len(ways))
    ]


def _torch_setup(backend_name: str, **more: Any) -> TorchSetup:
    return TorchSetup(
        model=tiny_model(),
        plugins=(GrammarPlugin,),
        tokenizer=small_tokenizer(vocab_size=VOCAB, marks=(MARK,)),
        tables={"grammar": {"backend": backend_name, "reasoning_parser": "qwen3"}},
        **{"engine": {"threads": 1}, **more},
    )


def test_a_model_thinks_and_then_follows(backend_name: str) -> None:
    """What ended is thinking, an empty line and the pattern; ranks and depth say the same."""
    requests = _thinking()
    setup = _torch_setup(backend_name)
    with TorchEngine(setup) as engine:
        streams = engine.generate(requests)
    tokenizer = small_tokenizer(vocab_size=VOCAB, marks=(MARK,))
    ended = 0
    for asked, stream in zip(requests, streams, strict=True):
        if stream.kind == "stop":
            ended += 1
            thinking, mark, answer = tokenizer.decode(stream.tokens).partition(f"{MARK}\n\n")
            assert mark
            assert thinking
            assert re.fullmatch(str(asked.features["regex"]), answer), answer
    assert ended >= 6
    tokens = [stream.tokens for stream in streams]
    with TorchEngine(evolve(setup, depth=0)) as engine:
        assert [stream.tokens for stream in engine.generate(requests)] == tokens
    ranked = _torch_setup(backend_name, engine={"threads": 1, "tp": 2})
    for in_flight in (0, 1):
        with TorchWorld(Topology(tp=2), evolve(ranked, depth=in_flight)) as world:
            assert [stream.tokens for stream in world.generate(requests)] == tokens

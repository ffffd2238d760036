# SPDX-License-Identifier: MIT
"""Constrained requests on whole engines: one rank and several, with the real scheduler.

A constrained row of the scripted plane samples the lowest token its grammar allows; tokens below
256 are bytes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import pytest
from attrs import evolve

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.engine import EngineFixture, EngineSetup, Tiers
from tokenspeed_core.testing.messages import request, telling_tokens
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.world import WorldFixture
from tokenspeed_grammar.backend import CompiledGrammar
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.plugin import GrammarPlugin
from tokenspeed_hookspecs import AddRequest, ControlRequest

VOCAB, END = 2048, 2047
AB = [ord("a"), ord("b"), END]
WIDE = json.dumps(
    {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "pattern": "^[a-z]{3,9}$"} for n in range(3000)},
        "required": [f"p{n}" for n in range(3000)],
    }
)
Worlds = Callable[..., WorldFixture]
Engines = Callable[..., EngineFixture]


class GatedGrammar(GrammarPlugin):
    """Compiles of sources that begin with `slow` wait for the gate."""

    gate: ClassVar[threading.Event] = threading.Event()

    def _compile(self, key: GrammarKey) -> CompiledGrammar:
        if key.source.startswith("slow"):
            assert self.gate.wait(timeout=30)
        return super()._compile(evolve(key, source=key.source.removeprefix("slow")))


def _setup(**more: Any) -> EngineSetup:
    usual: dict[str, Any] = {
        "plugins": (GatedGrammar,),
        "tokenizer": small_tokenizer(vocab_size=VOCAB),
        "plane": {"vocab_size": VOCAB, "eos_token_ids": (END,)},
    }
    return EngineSetup(**{**usual, **more})


def _constrained(request_id: str, *, budget: int = 6, **features: object) -> AddRequest:
    return evolve(request(request_id, 8, budget=budget), features=features)


def _patient(condition: Callable[[], object]) -> Callable[[], bool]:
    """The condition, with a moment for compile threads before each next round."""

    def holds() -> bool:
        if condition():
            return True
        time.sleep(0.001)
        return False

    return holds


def _run_to_end(engine: EngineFixture, *request_ids: str) -> list[Stream]:
    """Run until each of these ended; their streams."""
    received = engine.received
    engine.run_until(_patient(lambda: all(received[name].finish for name in request_ids)))
    return [received[name] for name in request_ids]


def _end(stream: Stream) -> tuple[str | None, int | None, str]:
    finish = stream.finish
    assert finish is not None, f"{stream.request_id} runs"
    return stream.kind, finish.status_code, finish.message or ""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The gate of slow compiles, shut."""
    GatedGrammar.gate.clear()
    yield GatedGrammar.gate
    GatedGrammar.gate.set()


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Make engines with the plugin, by EngineSetup's options; they are stopped at the end."""
    with ExitStack() as stack:

        def make(**more: Any) -> EngineFixture:
            engine = EngineFixture(_setup(**more))
            stack.callback(engine.rank.stop)
            return engine

        yield make


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    """Make worlds of ranks with the plugin."""
    with ExitStack() as stack:

        def make(topology: Topology, **more: Any) -> WorldFixture:
            return stack.enter_context(WorldFixture(topology, _setup(**more)))

        yield make


TOPOLOGIES = {
    "one rank": Topology(),
    "two positions": Topology(tp=2),
    "two stages": Topology(pp=2),
    "two replicas": Topology(dp=2),
}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_constrained_requests_follow_their_grammars_on_every_rank(
    worlds: Worlds, topology: str, depth: int
) -> None:
    """A regex gives its text and the end; a bad one fails alone; a plain request is untouched."""
    world = worlds(TOPOLOGIES[topology], depth=depth)
    world.put(
        _constrained("g-0", regex="a(b|x)"),
        _constrained("bad-0", regex="([a-z"),
        _constrained("g-1", regex="a(b|x)"),
        request("plain-0", 8, budget=3),
    )
    received = world.engine().received
    names = ("g-0", "bad-0", "g-1", "plain-0")
    world.run_until(_patient(lambda: all(received[name].finish for name in names)))
    world.to_idle()
    for name in ("g-0", "g-1"):
        assert (received[name].tokens, received[name].kind) == (AB, "stop")
    kind, status, message = _end(received["bad-0"])
    assert (kind, status) == ("abort", 400)
    assert message.startswith("Failed to compile regex grammar: ")
    assert received["plain-0"].tokens == telling_tokens(3)


@pytest.mark.parametrize("undo", ["resume", "resume_memory"])
def test_a_drain_cancels_the_requests_still_compiling_their_grammars(
    engines: Engines, gate: threading.Event, undo: str
) -> None:
    """A pause that waits ends what still compiles, with its own text; then serving goes on."""
    engine = engines()
    pause = {"resume": ("pause", {"mode": "wait"}), "resume_memory": ("release_memory", {})}[undo]
    engine.put(_constrained("cold", regex="slowa"))
    engine.rounds(3)
    engine.put(ControlRequest(*pause))
    engine.run_until(lambda: engine.received.replies)
    assert engine.received.replies[0].success
    assert _end(engine.received["cold"]) == ("abort", None, "Aborted by pause")
    assert engine.received["cold"].tokens == []
    engine.put(ControlRequest(undo), _constrained("warm", regex="a(b|x)", budget=2))
    (warm,) = _run_to_end(engine, "warm")
    assert warm.tokens == AB[:2]


def test_a_wide_schema_compiles_beside_running_requests(engines: Engines) -> None:
    """Rounds go on while three thousand properties are compiled."""
    engine = engines()
    engine.put(_constrained("wide", json_schema=WIDE, budget=4), request("plain", 8, budget=10))
    (plain,) = _run_to_end(engine, "plain")
    (wide,) = _run_to_end(engine, "wide")
    assert plain.tokens == telling_tokens(10)
    assert bytes(wide.tokens) == b"{\n\t\t"


def test_a_hundred_requests_of_one_grammar_compile_it_once(
    engines: Engines, gate: threading.Event
) -> None:
    """They wait together and pass together; the queue keeps its order."""
    engine = engines()
    names = [f"r{number}" for number in range(100)]
    engine.put(*[_constrained(name, regex="slowa(b|x)") for name in names])
    engine.rounds(5)
    assert engine.loop.requests.ids() == names
    gate.set()
    assert [stream.tokens for stream in _run_to_end(engine, *names)] == [AB] * 100
    engine.to_idle()


def test_a_known_grammar_costs_no_round(engines: Engines) -> None:
    """Its first token comes as early as that of a plain request."""
    engine = engines()
    engine.put(_constrained("first", regex="a(b|x)"))
    _run_to_end(engine, "first")
    engine.to_idle()
    rounds = []
    for asked in (request("plain", 8, budget=3), _constrained("again", regex="a(b|x)")):
        engine.put(asked)
        rounds.append(engine.run_until(partial(_has_begun, engine, asked.request_id)))
        engine.to_idle()
    assert rounds[0] == rounds[1]


def _has_begun(engine: EngineFixture, request_id: str) -> bool:
    return bool(engine.received[request_id].tokens)


def test_an_abort_while_the_grammar_compiles_is_honoured(
    engines: Engines, gate: threading.Event
) -> None:
    """Nothing is sent for it, and its grammar is there for the next request."""
    engine = engines()
    engine.put(_constrained("gone", regex="slowa"))
    engine.rounds(3)
    engine.abort("gone")
    engine.rounds(3)
    assert engine.loop.requests.ids() == []
    gate.set()
    engine.put(_constrained("next", regex="slowa"))
    (stream,) = _run_to_end(engine, "next")
    assert stream.tokens == [ord("a"), END]
    engine.to_idle()


def test_an_id_used_again_has_its_own_grammar(engines: Engines) -> None:
    """A request that ended leaves nothing behind for the next one of its id."""
    engine = engines()
    for letter in "ab":
        engine.put(_constrained("same", regex=letter))
        engine.run_until(_patient(lambda: engine.plane.released))
        engine.to_idle()
        engine.plane.released.clear()
    streams = engine.received.all_of("same")
    assert [stream.tokens for stream in streams] == [[ord("a"), END], [ord("b"), END]]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_retracted_request_keeps_its_place(engines: Engines, depth: int) -> None:
    """Requests that leave their slots again and again still say their text, whole."""
    engine = engines(depth=depth, tiers=Tiers.FORCED_RETRACTION)
    text = "abcdefghijklmnopqrstuvwxyz" * 2
    names = [f"r{number}" for number in range(12)]
    engine.put(*[_constrained(name, regex=text, budget=80) for name in names])
    for stream in _run_to_end(engine, *names):
        assert stream.tokens == [*text.encode(), END]
    engine.to_idle()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_in_chunks_advances_once(engines: Engines, depth: int) -> None:
    """Chunks that sample nothing move no matcher."""
    engine = engines(depth=depth, scheduler={"max_scheduled_tokens": 32})
    long = evolve(request("long", 150, budget=6), features={"regex": "a(b|x)"})
    engine.put(long)
    (stream,) = _run_to_end(engine, "long")
    assert stream.tokens == AB


@pytest.mark.parametrize("depth", [0, 1])
def test_the_end_of_the_grammar_ends_a_request_that_ignores_ends(
    engines: Engines, depth: int
) -> None:
    """With `ignore_eos` the core would go on; the text is over all the same."""
    engine = engines(depth=depth)
    plain = request("r0", 8, budget=9, ignore_eos=True)
    engine.put(evolve(plain, features={"regex": "a(b|x)"}))
    (stream,) = _run_to_end(engine, "r0")
    assert (stream.tokens, stream.kind) == (AB, "stop")


@pytest.mark.parametrize("depth", [0, 1])
def test_a_model_without_an_end_token_ends_with_the_grammar(engines: Engines, depth: int) -> None:
    """The last token of the text is the last one."""
    engine = engines(depth=depth, plane={"vocab_size": VOCAB})
    engine.put(_constrained("r0", regex="a(b|x)"))
    (stream,) = _run_to_end(engine, "r0")
    assert (stream.tokens, stream.kind) == (AB[:2], "stop")


def test_a_stop_token_may_follow_where_the_text_can_end(engines: Engines) -> None:
    """A request's own stop token is allowed there, and ends it."""
    engine = engines()
    plain = request("r0", 8, budget=9, stop_token_ids=[3])
    engine.put(evolve(plain, features={"regex": "ab*"}))
    (stream,) = _run_to_end(engine, "r0")
    assert (stream.tokens, stream.kind) == ([ord("a"), 3], "stop")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "two grammars": ({"regex": "a", "ebnf": "b"}, "Invalid request: only one grammar"),
    "a number": ({"regex": 7}, "Invalid request: regex must be a text"),
    "an empty EBNF": ({"ebnf": ""}, "Failed to compile ebnf grammar"),
    "a deep schema": ({"json_schema": '{"items":' * 800 + "{}" + "}" * 800}, "801 levels deep"),
    "a schema too long": ({"json_schema": "x" * (1 << 21)}, "may have 1048576 bytes"),
    "an unknown type": ({"json_schema": {"type": "foo"}}, "Failed to compile json grammar"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_grammar_ends_its_request_alone(engines: Engines, case: str) -> None:
    """It never gives a token; the reason comes with status 400; others do not notice."""
    engine = engines()
    features, said = BAD[case]
    engine.put(_constrained("bad", **features), _constrained("good", regex="a(b|x)"))
    bad, good = _run_to_end(engine, "bad", "good")
    kind, status, message = _end(bad)
    assert (kind, status, bad.tokens) == ("abort", 400, [])
    assert said in message
    assert good.tokens == AB


def test_an_engine_without_a_tokenizer_refuses_the_plugin() -> None:
    """Composition says what is missing."""
    with pytest.raises(Exception, match="grammars need the model's tokenizer"):
        EngineFixture(_setup(tokenizer=None))


def test_an_unknown_backend_is_told() -> None:
    """Composition names the backends there are."""
    with pytest.raises(Exception, match="there is no grammar backend 'nope'"):
        EngineFixture(_setup(tables={"grammar": {"backend": "nope"}}))

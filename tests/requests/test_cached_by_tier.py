# SPDX-License-Identifier: MIT
"""Where a request's cached tokens were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tokenspeed_core.completion import Growing
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.wire.outputs import pack_own_batch, unpack_batch
from tokenspeed_hookspecs import ChunkDetails, OutputBatch

PROMPT = [(7 * i) % 290 for i in range(70)]


@pytest.fixture
def engine() -> Iterator[TorchEngine]:
    """An engine with a host tier that knows the prompt; the device has forgotten it."""
    setup = TorchSetup(model=tiny_model(), engine={"threads": 1}, scheduler={"host_pages": 129})
    with TorchEngine(setup) as engine:
        ask(engine, "first")
        forget(engine)
        yield engine


def ask(engine: TorchEngine, name: str, *, length: int = 70, interval: int = 1) -> Stream:
    """Send some of the prompt."""
    asked = request(
        name, PROMPT[:length], budget=4, temperature=0.0, stream_interval=interval, ignore_eos=True
    )
    return engine.generate([asked])[0]


def forget(engine: TorchEngine) -> None:
    """Let the device's pages go; the host tier keeps its own."""
    assert engine.ask("release_memory", tags=["kv_cache"]).success
    assert engine.ask("resume_memory", tags=["kv_cache"]).success


def tiers(stream: Stream) -> list[Mapping[str, int] | None]:
    """What the chunks that tell of tiers say."""
    told = [chunk.details.cached_by_tier for chunk in stream.chunks if chunk.details is not None]
    return [each for each in told if each is not None]


def test_what_was_loaded_is_told_in_the_first_chunk_and_the_last(engine: TorchEngine) -> None:
    """All cached tokens came from the host, also the partly filled page's; they add up."""
    stream = ask(engine, "again")
    cached = stream.chunks[-1].cached_tokens
    assert tiers(stream) == [{"device": 0, "host": cached}] * 2
    assert cached >= 64


def test_tiers_are_told_once_where_there_is_one_chunk(engine: TorchEngine) -> None:
    """A stream of a single chunk has them in it."""
    stream = ask(engine, "again", interval=100)
    assert len(tiers(stream)[-1] or {}) == 2


def test_hits_on_the_device_are_told_apart(engine: TorchEngine) -> None:
    """What an earlier request loaded is on the device for the next one; only the rest is loaded."""
    ask(engine, "half", length=40)
    (first, _) = tiers(ask(engine, "whole"))
    assert first is not None
    assert first["device"] >= 32
    assert first["host"] >= 16
    assert tiers(ask(engine, "warm")) == []


def test_a_plugin_moves_tokens_to_its_own_tier(engine: TorchEngine) -> None:
    """Noted before the request is planned or after; never more than the host tier brought."""
    asked = request("noted", PROMPT, budget=4, temperature=0.0, ignore_eos=True)
    engine.frontend.put(asked)
    requests = engine.rank.loop.requests
    while not engine.frontend.received["noted"].chunks:
        engine.rank.loop.round()
    requests.note_cached("noted", "far", num_tokens=16)
    requests.note_cached("noted", "far", num_tokens=16)
    requests.note_cached("nobody", "far", num_tokens=16)
    found = requests.get("noted")
    assert found is not None
    assert found.cached_by_tier == {"device": 0, "host": found.cached_tokens - 32, "far": 32}
    requests.note_cached("noted", "far", num_tokens=1000)
    assert found.cached_by_tier == {"device": 0, "host": 0, "far": found.cached_tokens}


@pytest.mark.parametrize(("tier", "count"), [("device", 1), ("host", 1), ("far", -1)])
def test_nonsense_is_refused(engine: TorchEngine, tier: str, count: int) -> None:
    """The core counts its own tiers, and tokens are not taken back."""
    with pytest.raises(ValueError, match="x: "):
        engine.rank.loop.requests.note_cached("x", tier, num_tokens=count)


def test_counters_tell_the_hit_rate(engine: TorchEngine) -> None:
    """Prompt tokens, cached ones, and those of each tier, of the requests that were prefilled."""
    stream = ask(engine, "again")
    counters = engine.rank.engine.counters
    cached = stream.chunks[-1].cached_tokens
    assert counters["prompt_tokens"] == 140
    assert (counters["cached_tokens"], counters["cached_tokens_host"]) == (cached, cached)
    on_device = ask(engine, "warm").chunks[-1].cached_tokens
    counters = engine.rank.engine.counters
    assert counters["cached_tokens_device"] == on_device > 0
    assert counters["cached_tokens"] == cached + on_device


def test_tiers_cross_the_wire_and_are_usage() -> None:
    """A batch with tiers in one row has them in that row at the other end."""
    batch = OutputBatch(
        ["a", "b"], [1, 2], [1, 1], [9, 9], [1, 1], [8, 8],
        {1: ChunkDetails(cached_by_tier={"device": 3, "host": 5})},
    )  # fmt: skip
    chunks = dict(unpack_batch(pack_own_batch(batch, None, engine_index=0)).chunks)
    assert chunks["a"].details is None
    growing = Growing("b", None)
    growing.take(chunks["b"])
    growing.leave()
    usage = growing.completion().usage.as_json()
    assert usage["cached_by_tier"] == {"device": 3, "host": 5}

# SPDX-License-Identifier: MIT
"""Failures of request life, aborts and ids that others had in the field."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenspeed_core.testing import (
    Chunk,
    EngineFixture,
    EngineSetup,
    ManualFrontend,
    RowFault,
    Tiers,
    request,
    scripted_engine,
    telling_tokens,
)
from tokenspeed_hookspecs import AbortRequests, CacheOperationKind, Message, Plugin, Round, hookimpl

REPEATS = 60  # raise to 500 for the length of the field reports
depths = pytest.mark.parametrize("depth", [0, 1])


@depths
@pytest.mark.parametrize("gap", [None, 0, 1, 3])
def test_a_live_id_sent_twice(depth: int, gap: int | None) -> None:
    """LIFE-03: the second use of a live id changes nothing for the first, and the id is free once
    the first has ended. A gap of None is one batch."""
    engine = scripted_engine(depth=depth)
    engine.add("x", 5, budget=8)
    if gap is not None:
        engine.rounds(gap)
    engine.add("x", 6, budget=8)
    engine.run_to_end("x")
    engine.add("x", 7, budget=8)
    engine.to_idle()
    found = [(s.chunks[-1].prompt_tokens, s.tokens) for s in engine.received.all_of("x")]
    assert found == [(5, telling_tokens(8)), (7, telling_tokens(8))]


@depths
@pytest.mark.parametrize("gap", [0, 1, 2])
def test_an_id_is_sent_again_and_aborted(depth: int, gap: int) -> None:
    """LIFE-04: the abort reaches the second request, also while that waits for the end of the
    first, and no forward of it is run for nobody."""
    engine = scripted_engine(depth=depth)
    engine.add("x", 4, budget=3)
    engine.run_to_end("x")
    engine.add("x", 4, budget=50)
    engine.rounds(gap)
    engine.abort("x")
    engine.to_idle()
    tokens = [stream.tokens for stream in engine.received.all_of("x")]
    assert tokens[0] == telling_tokens(3)
    assert sum(map(len, tokens[1:])) <= 3


@depths
def test_an_id_is_sent_again_on_its_finish(depth: int) -> None:
    """LIFE-04: a caller that reuses its id at once gets exactly its own tokens, every time."""

    def again(name: str, chunk: Chunk) -> Sequence[Message]:
        left = REPEATS - frontend.sent[name]
        return [request(name, 4, budget=2 + left % 3)] if chunk.finish and left else []

    frontend = ManualFrontend(again)
    engine = scripted_engine(depth=depth, frontend=frontend)
    engine.add("x", 4, budget=3)
    engine.to_idle()
    streams = engine.received.all_of("x")
    assert [len(s.tokens) for s in streams[1:]] == [
        2 + (REPEATS - n) % 3 for n in range(1, REPEATS)
    ]
    assert all(stream.tokens == telling_tokens(len(stream.tokens)) for stream in streams)


@depths
@pytest.mark.parametrize("offset", [-1, 0, 1, 2])
def test_aborts_cross_the_normal_end(depth: int, offset: int) -> None:
    """LIFE-06: an abort around the round of the last token leaves one end, and the engine runs."""
    engine = scripted_engine(depth=depth)
    names = [f"r{i}" for i in range(REPEATS)]
    budget = 4
    at_tokens = max(1, min(budget + offset, budget))

    def due(name: str) -> bool:
        return len(engine.received[name].tokens) >= at_tokens

    for name in names:
        engine.add(name, 5, budget=budget)
    waiting = list(names)
    while waiting:
        ready = [name for name in waiting if due(name)]
        waiting = [name for name in waiting if name not in ready]
        if offset > 0 and ready:
            engine.rounds(offset)
        if ready:
            engine.abort(*ready)
        engine.round()
    engine.to_idle()
    assert sorted(name for name, _ in engine.plane.released) == sorted(names)


class _AbortAtDispatch(Plugin):
    """Aborts one row of a batch that is about to be dispatched."""

    name = "abort_at_dispatch"
    victim = "r1"

    @hookimpl
    def dispatch(self, round: Round) -> None:
        batch = round.batch
        assert batch is not None
        state = self.engine.requests.get(self.victim)
        if self.victim in batch.request_ids and state is not None and len(state.output_ids) == 2:
            self.engine.requests.abort(self.victim, "ended by a plugin")


@depths
def test_a_planned_row_ends_before_its_bookkeeping(depth: int) -> None:
    """LIFE-08: a request that ends between plan and commit is answered, told so, and forgotten."""
    engine = EngineFixture(EngineSetup(depth=depth, plugins=(_AbortAtDispatch,)))
    for name in ("r1", "r2"):
        engine.add(name, 5, budget=9)
    victim, other = engine.run_to_end("r1", "r2")
    assert victim.finish is not None
    assert (victim.kind, victim.finish.message) == ("abort", "ended by a plugin")
    assert victim.tokens == telling_tokens(len(victim.tokens))
    assert other.tokens == telling_tokens(9)
    engine.to_idle()


@depths
@pytest.mark.parametrize("at_round", range(8))
def test_a_queued_request_is_cancelled_by_id_only(depth: int, at_round: int) -> None:
    """LIFE-10: cancelling what waits behind a full batch leaves the running request alone, and no
    forward ever names the cancelled one."""
    engine = scripted_engine(depth=depth, scheduler={"max_batch_size": 1})
    engine.add("running", 5, budget=9)
    engine.round()
    engine.add("queued", 5, budget=9)
    engine.rounds(at_round)
    engine.abort("queued")
    (stream,) = engine.run_to_end("running")
    assert stream.tokens == telling_tokens(9)
    engine.to_idle()
    assert all("queued" not in batch.request_ids for batch in engine.plane.batches)


@depths
def test_a_dropped_stream_costs_one_more_forward_a_depth(depth: int) -> None:
    """LIFE-11: after the abort of a running request at most one forward more than those in flight
    names it."""
    engine = scripted_engine(depth=depth)
    engine.add("r1", 5, budget=1000)
    engine.run_until(lambda: engine.received["r1"].tokens)
    before = engine.plane.num_forwards
    engine.abort("r1")
    engine.to_idle()
    assert engine.plane.num_forwards - before <= 1 + depth


@depths
def test_a_stream_dropped_before_its_first_forward_costs_none(depth: int) -> None:
    """LIFE-11: a request whose client is gone before it is planned never reaches the device."""
    engine = scripted_engine(depth=depth)
    engine.put(request("r1", 5, budget=1000), AbortRequests(("r1",)))
    engine.to_idle()
    assert engine.plane.num_forwards == 0


@depths
@pytest.mark.parametrize("prompt", [5, 522], ids=["plain", "chunked"])
@pytest.mark.parametrize("tiers", [Tiers.DEVICE_ONLY, Tiers.FORCED_RETRACTION])
def test_the_first_token_is_a_stop_token(depth: int, prompt: int, tiers: Tiers) -> None:
    """LIFE-12: an answer that is a stop token alone ends cleanly, whatever came before it."""
    engine = scripted_engine(depth=depth, tiers=tiers)
    engine.plane.faults.at_token("r1", 0, fault=RowFault(token=77))
    engine.add("other", 20, budget=30)
    engine.add("r1", prompt, budget=50, stop_token_ids=(77,))
    stream, other = engine.run_to_end("r1", "other")
    assert (stream.tokens, stream.kind) == ([77], "stop")
    assert other.tokens == telling_tokens(30)
    engine.to_idle()


@depths
@pytest.mark.parametrize("delay", range(4))
def test_a_retracted_request_is_aborted(depth: int, delay: int) -> None:
    """LIFE-13: an abort while the image is stored, lies there, or comes back frees it, each cycle;
    the idle check compares the image pool with its start."""
    engine = scripted_engine(depth=depth, tiers=Tiers.HOST_AND_FORCED_RETRACTION)
    for cycle in range(REPEATS // 10):
        names = [f"c{cycle}r{i}" for i in range(3)]
        stored = engine.count(CacheOperationKind.SNAPSHOT)
        for name in names:
            engine.add(name, 20, budget=40)

        def is_stored(stored: int = stored) -> bool:
            return engine.count(CacheOperationKind.SNAPSHOT) > stored

        engine.run_until(is_stored)
        engine.rounds(delay)
        engine.abort(*names)
        engine.to_idle()
    assert all(not engine.received[name].finish for name in engine.received.ids())


PAGE, USABLE_PAGES = 16, 32


@depths
@pytest.mark.parametrize("beyond", range(-2 * PAGE, 2 * PAGE + 1, 5))
def test_lengths_around_the_advertised_maximum(depth: int, beyond: int) -> None:
    """LIFE-16: a prompt around what the pool can take either runs or is refused; a cancel clears
    it, and a small request runs after it."""
    engine = scripted_engine(depth=depth, scheduler={"num_pages": USABLE_PAGES + 1})
    prompt = engine.scheduler.max_request_tokens - 1 + beyond
    engine.add("large", prompt, budget=1)
    (large,) = engine.run_to_end("large")
    assert (large.kind, large.tokens) == (("length", [1000]) if beyond <= 0 else ("abort", []))
    engine.add("cancelled", prompt, budget=1)
    engine.rounds(1)
    engine.abort("cancelled")
    engine.add("small", 3, budget=3)
    (small,) = engine.run_to_end("small")
    assert small.tokens == telling_tokens(3)
    engine.to_idle()

# SPDX-License-Identifier: MIT
"""Failures around NaN and around cached pages that others had in the field.

Page contents are simulated in all of these: a row that reads a page of another text fails.
"""

from __future__ import annotations

import random

import pytest

from tokenspeed_core.testing import RowFault, Tiers, scripted_engine, telling_tokens
from tokenspeed_hookspecs import CacheOperationKind

STEPS = 150  # raise to 100,000 for the length of the field reports
depths = pytest.mark.parametrize("depth", [0, 1])


@depths
@pytest.mark.parametrize("index", [0, 1, 5, 8])
@pytest.mark.parametrize("tiers", list(Tiers))
def test_a_nan_row_ends_its_request_only(depth: int, index: int, tiers: Tiers) -> None:
    """NUM-01: NaN at token k gives the tokens before it and a numerical abort; neighbours go on."""
    engine = scripted_engine(depth=depth, tiers=tiers)
    engine.plane.faults.at_token("bad", index, fault=RowFault(is_nan=True))
    for name in ("before", "bad", "after"):
        engine.add(name, 20, budget=9)
    before, bad, after = engine.run_to_end("before", "bad", "after")
    assert bad.finish is not None
    assert (bad.tokens, bad.finish.error_type) == (telling_tokens(index), 523)
    assert before.tokens == after.tokens == telling_tokens(9)
    engine.to_idle()


@depths
@pytest.mark.parametrize("tiers", [Tiers.DEVICE_ONLY, Tiers.HOST])
def test_pages_of_a_nan_request_are_never_reused(depth: int, tiers: Tiers) -> None:
    """NUM-02: after NaN at the last prompt token only whole chunks before it can be hit again."""
    engine = scripted_engine(depth=depth, tiers=tiers)
    prompt = list(range(1, 301))
    engine.plane.faults.at_token("bad", 0, fault=RowFault(is_nan=True))
    engine.add("bad", prompt, budget=9)
    engine.run_to_end("bad")
    engine.add("again", prompt, budget=2)
    (again,) = engine.run_to_end("again")
    assert again.tokens == telling_tokens(2)
    assert again.chunks[-1].cached_tokens <= 256
    engine.to_idle()


@depths
def test_a_short_nan_prompt_leaves_no_prefix(depth: int) -> None:
    """NUM-02: a prompt of one chunk that ended in NaN is computed again from its first token."""
    engine = scripted_engine(depth=depth)
    engine.plane.faults.at_token("bad", 0, fault=RowFault(is_nan=True))
    for name in ("bad", "again"):
        engine.add(name, 80, budget=2)
        engine.run_to_end(name)
    assert engine.received["again"].chunks[-1].cached_tokens == 0
    engine.to_idle()


@depths
def test_every_hit_matches_its_tokens(depth: int) -> None:
    """CACHE-05: prompts that differ in one token, at any place, never share a page behind it."""
    engine = scripted_engine(depth=depth, tiers=Tiers.HOST)
    for at in range(0, 64, 3):
        prompt = list(range(1, 65))
        prompt[at] = 99_999
        engine.add(f"r{at}", prompt, budget=2)
        (stream,) = engine.run_to_end(f"r{at}")
        assert stream.chunks[-1].cached_tokens <= at
    engine.to_idle()


@depths
@pytest.mark.parametrize("tiers", list(Tiers))
def test_pages_are_evicted_and_handed_out_again(depth: int, tiers: Tiers) -> None:
    """CACHE-06: in a pool far smaller than its traffic every hit is the request's own text, and
    pages add up in every round."""
    engine = scripted_engine(depth=depth, tiers=tiers, scheduler={"num_pages": 24})
    rng = random.Random(tiers.name)
    roots = [[rng.randrange(100) for _ in range(70)] for _ in range(3)]
    for step in range(STEPS):
        root = roots[rng.randrange(3)][: rng.randint(1, 70)]
        engine.add(f"r{step}", [*root, *range(rng.randint(0, 20))] or [1], budget=rng.randint(1, 9))
        engine.rounds(rng.randint(0, 2))
        if rng.random() < 0.1:
            engine.abort(f"r{rng.randint(0, step)}")
        if rng.random() < 0.05:
            engine.scheduler.clear_cache()
    engine.to_idle()
    assert engine.plane.pages is not None
    assert engine.plane.pages.num_checked > STEPS


@depths
@pytest.mark.parametrize("tiers", list(Tiers))
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("window", [None, 32])
def test_counters_in_every_mix_of_features(
    depth: int, tiers: Tiers, prefix_cache: bool, window: int | None
) -> None:
    """CACHE-08: one short request, then traffic, in every mix: no counter goes below zero and all
    come back to their start."""
    for mixed in (True, False):
        engine = scripted_engine(
            depth=depth,
            tiers=tiers,
            scheduler={"prefix_cache": prefix_cache, "mixed_batches": mixed},
            plane={"sliding_window": window},
        )
        engine.add("short", 1, budget=1)
        engine.run_to_end("short")
        engine.to_idle()
        for i in range(6):
            engine.add(f"r{i}", 30 + 20 * i, budget=12)
        streams = engine.run_to_end(*(f"r{i}" for i in range(6)))
        assert all(stream.tokens == telling_tokens(12) for stream in streams)
        engine.to_idle()
    assert CacheOperationKind.OTHER not in engine.plane.operations

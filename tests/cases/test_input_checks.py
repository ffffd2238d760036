# SPDX-License-Identifier: MIT
"""Failures of input checks that others had in the field: the bad request ends, alone."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest

from tokenspeed_core.testing import EngineFixture, request, scripted_engine, telling_tokens
from tokenspeed_hookspecs import AddRequest, LogprobOptions

VOCAB = 100_000
depths = pytest.mark.parametrize("depth", [0, 1])


def _refused_between_good_ones(engine: EngineFixture, bad: AddRequest) -> str:
    """Send a bad request between two good ones; returns its message."""
    engine.add("first", 5, budget=4)
    engine.put(bad)
    engine.add("last", 6, budget=4)
    first, refused, last = engine.run_to_end("first", bad.request_id, "last")
    assert first.tokens == last.tokens == telling_tokens(4)
    engine.to_idle()
    assert refused.finish is not None
    assert (refused.tokens, refused.finish.status_code) == ([], 400)
    return str(refused.finish.message)


@depths
def test_an_empty_prompt(depth: int) -> None:
    """VAL-01: a prompt without tokens is refused, alone and between good requests."""
    engine = scripted_engine(depth=depth)
    engine.put(request("empty", []))
    (alone,) = engine.run_to_end("empty")
    assert alone.kind == "abort"
    assert "empty" in _refused_between_good_ones(engine, request("again", []))


@depths
def test_a_prompt_larger_than_the_whole_pool(depth: int) -> None:
    """VAL-03: what can never be admitted is refused with the capacity, and blocks nobody."""
    engine = scripted_engine(depth=depth, scheduler={"num_pages": 33})
    message = _refused_between_good_ones(engine, request("large", 32 * 16 + 1, budget=1))
    assert str(engine.scheduler.max_request_tokens - 1) in message


@depths
@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_stop_tokens_outside_the_vocabulary(depth: int, token: int) -> None:
    """VAL-04: a stop id the model does not have is refused, with a minimum length and without."""
    for minimum in (0, 1):
        bad = request("bad", 5, budget=9, min_new_tokens=minimum, stop_token_ids=(1, token))
        assert str(token) in _refused_between_good_ones(scripted_engine(depth=depth), bad)


@depths
@pytest.mark.parametrize(
    "bias", [{-1: 1.0}, {VOCAB: 1.0}, {5: math.nan}, {5: math.inf}, {5: -math.inf}], ids=str
)
def test_a_logit_bias_outside_the_vocabulary(depth: int, bias: dict[int, float]) -> None:
    """VAL-06: a bias on an id the model does not have, or one that is not finite, is refused."""
    bad = request("bad", 5, budget=9, logit_bias=bias)
    _refused_between_good_ones(scripted_engine(depth=depth), bad)


@pytest.mark.parametrize("wanted", [{"top": VOCAB}, {"top": -1}, {"top": 21, "start": 0}])
def test_scores_for_a_whole_vocabulary(wanted: dict[str, Any]) -> None:
    """VAL-08: what would take gigabytes of scores is refused before anything is computed."""
    engine = scripted_engine(plane={"max_model_len": 8192})
    bad = request("bad", 4000, budget=1, logprobs=LogprobOptions(**wanted))
    tracemalloc.start()
    _refused_between_good_ones(engine, bad)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20

# SPDX-License-Identifier: MIT
"""Failures of outputs and scores that others had in the field."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import attrs
import pytest

from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    RowFault,
    Stream,
    Tiers,
    request,
    scripted_engine,
    telling_tokens,
)
from tokenspeed_hookspecs import CacheOperationKind, LogprobOptions

SEEDS = 40  # raise to 1,000 for the length of the field reports
depths = pytest.mark.parametrize("depth", [0, 1])


@depths
@pytest.mark.parametrize("end", [500, 600])
def test_every_end_id_of_the_model_ends(depth: int, end: int) -> None:
    """OUT-05: with several end ids each of them ends a request, and none where they are ignored."""
    engine = scripted_engine(depth=depth, plane={"eos_token_ids": (500, 600)})
    for name in ("ends", "ignores"):
        engine.plane.faults.at_token(name, 2, fault=RowFault(token=end))
    engine.add("ends", 5, budget=6)
    engine.add("ignores", 5, budget=6, ignore_eos=True)
    ends, ignores = engine.run_to_end("ends", "ignores")
    assert (ends.tokens, ends.kind) == ([1000, 1001, end], "stop")
    assert (len(ignores.tokens), ignores.kind) == (6, "length")
    engine.to_idle()


def _lengths(stream: Stream) -> list[tuple[int, int, int]]:
    """Per chunk: tokens, logprobs, alternatives."""
    details = [chunk.details for chunk in stream.chunks]
    assert all(each is not None for each in details)
    return [
        (len(chunk.tokens), len(each.logprobs or ()), len(each.alternatives or ()))
        for chunk, each in zip(stream.chunks, details, strict=True)
        if each is not None
    ]


@depths
@pytest.mark.parametrize("prompt", range(20, 30))
def test_a_retraction_keeps_the_scores_with_their_tokens(depth: int, prompt: int) -> None:
    """OUT-09: whatever token a retraction falls on, each token has one logprob and one list of
    alternatives, its own."""
    engine = scripted_engine(depth=depth, tiers=Tiers.FORCED_RETRACTION)
    wanted = LogprobOptions(start=3, top=2)
    names = ["r0", "r1", "r2"]
    for i, name in enumerate(names):
        engine.put(request(name, prompt + i, budget=20, logprobs=wanted))
    for stream in engine.run_to_end(*names):
        assert all(len(set(counts)) == 1 for counts in _lengths(stream))
        assert stream.tokens == telling_tokens(20)
        assert stream.logprobs == pytest.approx([-token / 1000 for token in stream.tokens])
    assert engine.count(CacheOperationKind.SNAPSHOT) > 0
    engine.to_idle()


def _prompt_values(stream: Stream) -> Sequence[float | None]:
    details = [chunk.details for chunk in stream.chunks]
    (found,) = [each.prompt for each in details if each is not None and each.prompt is not None]
    return found.values


@depths
@pytest.mark.parametrize("start", [0, 15, 16, 17, 40, 63])
def test_prompt_scores_behind_a_prefix_hit(depth: int, start: int) -> None:
    """OUT-10: the same prompt, fresh, cached and among others, has the same scores."""
    engine = scripted_engine(depth=depth)
    prompt, wanted = list(range(1, 81)), LogprobOptions(start=start)
    found = []
    for name, before in (("a", []), ("b", []), ("c", [200, 300])):
        for length in before:
            engine.add(f"{name}{length}", [*prompt[:50], *range(500, 500 + length)], budget=2)
        engine.put(request(name, prompt, budget=2, logprobs=wanted))
        (stream,) = engine.run_to_end(name)
        found.append(_prompt_values(stream))
        assert stream.chunks[-1].cached_tokens <= start
    assert found[0] == found[1] == found[2]
    assert found[0][1:] == pytest.approx([-(p + 1) / 10 for p in range(start, 79)])
    engine.to_idle()


@depths
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_scores_without_a_finite_value(depth: int, value: float) -> None:
    """OUT-12: a score the device reports as minus infinity or NaN leaves as a finite number."""
    engine = scripted_engine(depth=depth)
    engine.plane.faults.at_token("r1", 1, fault=RowFault(logprob=value))
    engine.put(request("r1", 5, budget=3, logprobs=LogprobOptions(start=0, top=2)))
    (stream,) = engine.run_to_end("r1")
    details = [attrs.asdict(chunk.details) for chunk in stream.chunks if chunk.details is not None]
    for each in details:
        each.pop("finish")
    json.dumps(details, allow_nan=False)
    assert stream.logprobs == pytest.approx([-1.0, -9999.0, -1.002])
    engine.to_idle()


IDS = [
    "plain",
    "naïve",
    "日本語" * 90,
    "🦀" * 200,
    "nul\0here",
    "lone \ud800",
    "line\nbreak",
    "%s %d",
]


@depths
@pytest.mark.parametrize("stats", [True, False])
def test_a_log_line_of_any_id(depth: int, stats: bool, caplog: pytest.LogCaptureFixture) -> None:
    """OUT-15: whatever text an id is, its log lines can be written, each as one line; an id that is
    no text at all is refused."""
    setup = EngineSetup(depth=depth, without=(), tables={"finish_line": {"stats": stats}})
    engine = EngineFixture(setup)
    with caplog.at_level("INFO"):
        for request_id in IDS:
            engine.add(request_id, 5, budget=2)
        engine.run_to_end(*IDS)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "Finish!" in line]) == len(IDS) - 1
    assert engine.received["lone \ud800"].kind == "abort"
    assert not any("\n" in line for line in lines)
    assert "\n".join(lines).encode("utf-8")
    engine.to_idle()


@depths
def test_a_forward_out_when_its_request_loses_its_pages(depth: int) -> None:
    """OUT-16: with a retraction forced every three plans, in any mix, each request gets exactly
    tokens 0 to n - 1."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        engine = scripted_engine(
            depth=depth,
            tiers=Tiers.FORCED_RETRACTION,
            scheduler={"num_pages": rng.choice([20, 40, 513])},
        )
        budgets = {f"r{i}": rng.randint(1, 30) for i in range(6)}
        for name, budget in budgets.items():
            engine.add(name, rng.randint(1, 90), budget=budget)
            engine.rounds(rng.randint(0, 3))
        for stream in engine.run_to_end(*budgets):
            assert stream.tokens == telling_tokens(budgets[stream.request_id]), seed
        engine.to_idle()

# SPDX-License-Identifier: MIT
"""Random traffic on a tiny model: whatever happens around a request, it says what it says alone.

A failure prints the seed; the same seed makes the same requests, engine and aborts again.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.torch_plane.plane import TorchDataPlane
from tokenspeed_hookspecs import AbortRequests, AddRequest

NUM_REQUESTS = 20
MAX_ROUNDS = 5000
TEXT = random.Random(0).choices(range(290), k=200)
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.1, "top_k": 20, "repetition_penalty": 1.3},
    {"temperature": 0.0, "presence_penalty": 0.8, "frequency_penalty": 0.3},
    {"temperature": 0.7, "top_p": 0.9, "min_new_tokens": 10},
]


def some_requests(dice: random.Random) -> list[AddRequest]:
    """Requests of which most share a prefix."""
    made = []
    for number in range(NUM_REQUESTS):
        start = dice.choice([0, 0, 0, dice.randrange(50)])
        prompt = TEXT[start : start + dice.randrange(1, 120)]
        budget = dice.randrange(1, 50)
        sampling = {"seed": number, "ignore_eos": dice.random() < 0.5, **dice.choice(SAMPLING)}
        if budget < 10:
            sampling.pop("min_new_tokens", None)
        made.append(request(f"r{number}", prompt, budget=budget, **sampling))
    return made


def some_scheduler(dice: random.Random) -> dict[str, int]:
    """Sizes that make requests wait, be cut into chunks, be retracted, or be evicted."""
    scheduler = {
        "num_pages": dice.choice([40, 80, 513]),
        "max_batch_size": dice.choice([2, 4, 16]),
        "max_scheduled_tokens": dice.choice([16, 32, 256]),
    }
    if dice.random() < 0.7:
        scheduler |= {"snapshot_pages": dice.choice([33, 129]), "max_retracted": 8}
        scheduler["force_retraction_every"] = dice.choice([2, 3, 5])
    return scheduler | ({"host_pages": 129} if dice.random() < 0.5 else {})


def run(engine: TorchEngine, requests: list[AddRequest], dice: random.Random) -> set[str]:
    """Send requests at random moments, abort a few, run all to their ends; returns the aborted."""
    waiting, loop = list(requests), engine.rank.loop
    aborted: set[str] = set()
    for _ in range(MAX_ROUNDS):
        if not waiting and not len(loop.requests):
            return aborted
        if waiting and dice.random() < 0.3:
            engine.frontend.put(waiting.pop(0))
        if loop.requests.ids() and dice.random() < 0.03:
            victim = dice.choice(list(loop.requests.ids()))
            aborted.add(victim)
            engine.frontend.put(AbortRequests((victim,)))
        loop.round()
    raise AssertionError(f"{loop.requests.ids()} never ended")


@pytest.mark.parametrize("seed", range(6))
def test_requests_say_what_they_say_alone(tiny: TinyModel, seed: int) -> None:
    """Company, chunks, cache hits, retractions, evictions and aborts change no token."""
    dice = random.Random(seed)
    requests, single = some_requests(dice), {"threads": 1}
    alone = TorchSetup(model=tiny, depth=0, engine=single, scheduler={"prefix_cache": False})
    with TorchEngine(alone) as engine:
        expected = [stream.tokens for stream in engine.generate(requests, at_once=1)]
    scheduler, depth = some_scheduler(dice), dice.choice([0, 1])
    setup = TorchSetup(model=tiny, depth=depth, engine=single, scheduler=scheduler)
    with TorchEngine(setup) as engine:
        aborted = run(engine, requests, dice)
        for sent, tokens in zip(requests, expected, strict=True):
            found = engine.frontend.received[sent.request_id].tokens
            wanted = tokens[: len(found)] if sent.request_id in aborted else tokens
            assert found == wanted, f"seed {seed}, depth {depth}, {scheduler}: {sent}"
        plane = engine.rank.data_plane
        assert isinstance(plane, TorchDataPlane)
        assert plane.call(plane.num_known_requests) == 0

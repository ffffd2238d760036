# SPDX-License-Identifier: MIT
"""What belongs to a request goes where it goes: through batches, retractions and reused ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.torch_plane.plane import TorchDataPlane
from tokenspeed_hookspecs import AddRequest

MakeEngine = Callable[..., TorchEngine]
RETRACTION = {"snapshot_pages": 129, "max_retracted": 8, "force_retraction_every": 3}
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.2, "top_k": 20, "repetition_penalty": 1.4},
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.5},
    {"temperature": 0.7, "top_p": 0.9, "logit_bias": {3: 2.0}, "min_new_tokens": 20},
]


def some_requests() -> list[AddRequest]:
    """Five requests with different prompts and parameters, 24 tokens each."""
    return [
        request(f"r{i}", [(i + 11 * n) % 290 for n in range(20 + 9 * i)], budget=24, **params)
        for i, params in enumerate(PARAMS)
    ]


def tokens_of(engine: TorchEngine, **how: Any) -> list[list[int]]:
    """The tokens of the requests in an engine."""
    return [stream.tokens for stream in engine.generate(some_requests(), **how)]


@pytest.fixture(scope="module")
def alone(tiny: TinyModel) -> list[list[int]]:
    """The requests' tokens one by one, without any cache."""
    setup = TorchSetup(
        model=tiny, depth=0, engine={"threads": 1}, scheduler={"prefix_cache": False}
    )
    with TorchEngine(setup) as engine:
        return tokens_of(engine, at_once=1)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    "scheduler",
    [{}, {"max_scheduled_tokens": 16}, {"max_batch_size": 2}, {"mixed_batches": False}],
    ids=str,
)
def test_tokens_do_not_depend_on_the_company(
    start_engine: MakeEngine, alone: list[list[int]], *, scheduler: dict[str, Any], depth: int
) -> None:
    """Greedy, seeded and penalised requests say together what they say alone."""
    assert tokens_of(start_engine(scheduler=scheduler, depth=depth)) == alone


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("host", [{}, {"host_pages": 257}], ids=["device only", "host tier"])
def test_a_retraction_changes_no_token(
    start_engine: MakeEngine, alone: list[list[int]], *, host: dict[str, int], depth: int
) -> None:
    """OUT-16: length, text, seed and pages come along to another slot, every third round."""
    engine = start_engine(scheduler={**RETRACTION, **host}, depth=depth)
    assert tokens_of(engine) == alone


@pytest.mark.parametrize("depth", [0, 1])
def test_a_lone_request_gets_on_between_retractions(start_engine: MakeEngine, depth: int) -> None:
    """A request that is retracted every third round comes back before the next one is due."""
    engine = start_engine(scheduler=RETRACTION, depth=depth)
    stream = engine.generate([request("a", range(30), budget=40, ignore_eos=True)])[0]
    assert len(stream.tokens) == 40
    assert engine.rank.loop.last_round.number < 1000


def test_evicted_pages_come_back_from_the_host_tier(
    start_engine: MakeEngine, alone: list[list[int]]
) -> None:
    """With few device pages, a repeated prompt is loaded back and says the same."""
    engine = start_engine(scheduler={"num_pages": 24, "host_pages": 257})
    for _ in range(3):
        streams = engine.generate(some_requests())
        assert [stream.tokens for stream in streams] == alone


def test_a_reused_id_starts_anew(start_engine: MakeEngine) -> None:
    """A second request of the same id has none of the first one's counts or lengths."""
    engine = start_engine()
    wish: dict[str, Any] = {
        "budget": 12,
        "temperature": 0.0,
        "presence_penalty": 2.0,
        "ignore_eos": True,
    }
    first = engine.generate([request("same", range(30), **wish)])[0].tokens
    second = engine.generate([request("same", range(30), **wish)])[0].tokens
    assert first == second


def test_nothing_is_kept_of_requests_that_ended(start_engine: MakeEngine) -> None:
    """After the last request the plane holds no counts and knows no id."""
    engine = start_engine()
    engine.generate(some_requests())
    plane = engine.rank.data_plane
    assert isinstance(plane, TorchDataPlane)
    assert plane.call(plane.num_known_requests) == 0

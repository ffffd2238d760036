# SPDX-License-Identifier: MIT
"""The default model over several ranks; it has 9 attention heads and 3 key and value heads."""

from __future__ import annotations

import pytest

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import request
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_hookspecs import AddRequest

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small dragon who",
    "Water boils at",
    "def fibonacci(n):",
)


@pytest.fixture(scope="module")
def prompts() -> list[AddRequest]:
    """Four prompts for the default model, answered greedily."""
    tokenizer = resolve_model("smollm2-135m").load_tokenizer()
    return [
        request(f"r{index}", tokenizer.encode(text), budget=16, temperature=0.0)
        for index, text in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def expected(prompts: list[AddRequest]) -> list[list[int]]:
    """What one rank answers."""
    with TorchEngine(TorchSetup()) as one:
        return [stream.tokens for stream in one.generate(prompts)]


@pytest.mark.slow
@pytest.mark.parametrize("topology", [Topology(tp=3), Topology(pp=2)], ids=str)
def test_tokens_are_those_of_one_rank(
    prompts: list[AddRequest], expected: list[list[int]], topology: Topology
) -> None:
    """In float32, token for token."""
    with TorchWorld(topology, TorchSetup()) as world:
        assert [stream.tokens for stream in world.generate(prompts)] == expected


@pytest.mark.slow
def test_two_tensor_parallel_ranks_are_refused() -> None:
    """Nine heads do not divide by two; padding them would change the sums, so it is not done."""
    with pytest.raises(ConfigError) as raised, TorchWorld(Topology(tp=2), TorchSetup()):
        pass
    assert "engine.tp: the model's 9 attention heads do not divide by 2" in raised.value.problems

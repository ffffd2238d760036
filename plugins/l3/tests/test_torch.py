# SPDX-License-Identifier: MIT
"""A real model whose pages went through a store: the same tokens and logprobs, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import Stream
from tokenspeed_core.testing.messages import request as message
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_hookspecs import LogprobOptions

LIMIT_S = 60.0
PROMPT = [7 * number % 290 for number in range(100)]


def settle(world: TorchWorld) -> None:
    """Run until nothing is written back or stored any more."""
    end = time.monotonic() + LIMIT_S
    quiet = 0
    while quiet < 6:
        world.round()
        is_busy = any(
            rank.scheduler.storage_pending or rank.loop.ledger.num_open for rank in world.ranks
        )
        quiet = 0 if is_busy else quiet + 1
        time.sleep(0.0005)
        assert time.monotonic() < end


def run(store: str, topology: Topology, *names: str, **options: object) -> Sequence[Stream]:
    """An engine from its start to its end: the same prompt for each name, one after the other."""
    setup = TorchSetup(
        model=tiny_model(),
        depth=topology.pp,
        engine={"tp": topology.tp, "pp": topology.pp},
        scheduler={"host_pages": 64},
        plugins=("l3",),
        tables={"l3": {"store": store, "min_prefetch_tokens": 1, **options}},
    )
    streams = []
    with TorchWorld(topology, setup) as world:
        for name in names:
            wanted = message(name, PROMPT, budget=6, temperature=0.0, logprobs=LogprobOptions())
            streams += world.generate([wanted])
            settle(world)
    return streams


@pytest.mark.parametrize("topology", [Topology(), Topology(tp=2), Topology(pp=2)])
def test_a_model_goes_on_behind_pages_of_the_store_as_behind_its_own(
    tmp_path: Path, topology: Topology
) -> None:
    """The reference is a hit on the device, behind as many cached tokens."""
    goes_on_alike(f"file:{tmp_path}", topology)


@pytest.fixture
def in_memory() -> str:
    """A store in this process."""
    return "memory:of-a-model"


@pytest.fixture
def in_redis(redis: Any) -> str:
    """A store in a server of its own."""
    return f"redis:{redis.path}"


@pytest.mark.parametrize("place", ["in_memory", "in_redis", "in_s3"])
def test_a_model_goes_on_behind_pages_of_every_store(
    place: str, request: pytest.FixtureRequest
) -> None:
    """What holds for files holds for each."""
    goes_on_alike(request.getfixturevalue(place), Topology())


def goes_on_alike(store: str, topology: Topology) -> None:
    """Ask, ask again, and ask a new engine on the same store."""
    first, hit = run(store, topology, "first", "hit")
    (stored,) = run(store, topology, "stored")
    assert [each.chunks[-1].cached_tokens for each in (first, hit, stored)] == [0, 96, 96]
    assert first.tokens == hit.tokens == stored.tokens
    assert stored.logprobs == hit.logprobs
    assert stored.logprobs == pytest.approx(first.logprobs, abs=1e-4)
    details = stored.chunks[-1].details
    assert details is not None
    assert details.cached_by_tier == {"device": 0, "host": 0, "storage": 96}


def test_another_checkpoint_finds_nothing(tmp_path: Path) -> None:
    """The namespace has a fingerprint of the weights that were loaded."""
    run(f"file:{tmp_path}", Topology(), "first")
    setup = TorchSetup(
        model=tiny_model(seed=1),
        scheduler={"host_pages": 64},
        plugins=("l3",),
        tables={"l3": {"store": f"file:{tmp_path}", "min_prefetch_tokens": 1}},
    )
    with TorchWorld(Topology(), setup) as world:
        (stream,) = world.generate([message("other", PROMPT, budget=2)])
    assert stream.chunks[-1].cached_tokens == 0

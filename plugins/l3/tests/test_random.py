# SPDX-License-Identifier: MIT
"""Random traffic over a store that misbehaves: the same tokens as without the plugin, no page lost.

Small pools, so that pages are evicted and fetched again; aborts, flushes and pauses on the way. A
failure names its seed; L3_SEEDS runs more of them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import EngineSetup, Tiers, request, telling_tokens
from tokenspeed_hookspecs import AbortRequests, ControlRequest
from tokenspeed_l3.testing import Mischief, ScriptedStore

Deploy = Callable[..., Any]
NUM_SEEDS = int(os.environ.get("L3_SEEDS", "8"))
TOPOLOGIES = (Topology(), Topology(), Topology(tp=2), Topology(pp=2), Topology(dp=2))


@define
class Traffic:
    """Requests with common beginnings, and what else happens to an engine."""

    rng: random.Random
    names: int = 0
    budgets: dict[str, tuple[int, int]] = field(factory=dict)
    aborted: set[str] = field(factory=set)
    is_paused: bool = False

    def step(self, deployment: Any) -> None:
        """Leave some messages for the next round."""
        rng = self.rng
        for _ in range(rng.choice([0, 0, 1, 2])):
            self.add(deployment)
        if self.names and rng.random() < 0.08:
            name = f"q{rng.randint(1, self.names)}"
            self.aborted.add(name)
            deployment.world.put(AbortRequests((name,)))
        if rng.random() < 0.03:
            deployment.world.put(ControlRequest("flush_cache"))
        if rng.random() < (0.2 if self.is_paused else 0.03):
            self.is_paused = not self.is_paused
            pause = ControlRequest("pause", {"mode": rng.choice(["keep", "wait"])})
            deployment.world.put(pause if self.is_paused else ControlRequest("resume"))

    def add(self, deployment: Any) -> None:
        """A request that begins like others."""
        rng = self.rng
        self.names += 1
        root = rng.choice([0, 1000])
        prompt = [*range(root + 1, root + rng.randint(2, 120)), 50_000 + rng.randrange(3)]
        replica, budget = rng.randrange(deployment.world.topology.dp), rng.randint(1, 20)
        self.budgets[f"q{self.names}"] = (replica, budget)
        deployment.world.put(request(f"q{self.names}", prompt, budget=budget), replica=replica)

    def end(self, deployment: Any) -> None:
        """Let everything end."""
        if self.is_paused:
            deployment.world.put(ControlRequest("resume"))
        deployment.settle()

    def check(self, deployment: Any) -> None:
        """Every request got its tokens; one that was aborted some of the first."""
        for name, (replica, budget) in self.budgets.items():
            tokens = deployment.world.engine(replica).received[name].tokens
            wanted = telling_tokens(budget)
            assert tokens == (wanted[: len(tokens)] if name in self.aborted else wanted), name


def scheduler_of(rng: random.Random) -> dict[str, object]:
    """A small scheduler of some kind."""
    return {
        "num_pages": rng.choice([24, 40]),
        "host_pages": rng.choice([24, 60]),
        "max_batch_size": rng.choice([2, 8]),
        "max_scheduled_tokens": rng.choice([40, 256]),
    }


def tiers_of(rng: random.Random) -> Tiers:
    """With retraction or without."""
    return rng.choice([Tiers.HOST, Tiers.HOST_AND_FORCED_RETRACTION])


def skewed_clocks(rng: random.Random) -> Callable[[], float]:
    """A clock that is ahead or behind, and jumps; a thread's own, so that each rank's differs."""
    start = time.monotonic() + rng.uniform(-5, 5)
    return lambda: start + rng.random() * 0.05 + (time.monotonic() - start)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_random_traffic_gets_the_same_tokens_whatever_the_store_does(
    deploy: Deploy, seed: int
) -> None:
    """Delays, errors, nonsense, and an engine that starts again on what the first one left."""
    rng = random.Random(seed)
    topology = rng.choice(TOPOLOGIES)
    objects: dict[str, bytes] = {}
    stores = []
    for rank in range(topology.world_size):
        mischief = Mischief(random.Random(f"{seed} {rank}"), rate=rng.choice([0.0, 0.1, 0.3]))
        store = ScriptedStore(objects, before=mischief.before, answer=mischief.answer)
        stores.append(store)
    scheduler = scheduler_of(rng)
    options = {
        "max_host_pages": 20,
        "failure_threshold": rng.choice([1, 3]),
        "recovery_interval_s": 0.01,
        "wait_timeout_s": rng.choice([0.002, 1000.0]),
        "ready_timeout_s": rng.choice([0.002, 1000.0]),
        "read_workers": rng.choice([1, 3]),
    }
    depth = max(topology.pp, rng.choice([0, 1]))
    for life in range(2):
        setup = EngineSetup(depth=depth, tiers=tiers_of(rng), scheduler=scheduler)
        deployment = deploy(stores, topology, setup=setup, **options)
        traffic = Traffic(random.Random(f"{seed} {life}"))
        for _ in range(60):
            traffic.step(deployment)
            for _ in range(rng.randint(1, 4)):
                deployment.world.round()
        traffic.end(deployment)
        traffic.check(deployment)
        assert deployment.held == [0] * topology.world_size
        deployment.world.to_idle()


@pytest.mark.parametrize("seed", range(3))
def test_ranks_with_skewed_clocks_and_stores_of_their_own_speed_plan_alike(
    deploy: Deploy, seed: int
) -> None:
    """L3-01: time is the first rank's, and what a store brought counts once it is there on all."""
    rng = random.Random(seed)
    objects: dict[str, bytes] = {}
    stores = [
        ScriptedStore(
            objects, before=Mischief(random.Random(rank), delay_s=0.01 * rank, rate=0.1).before
        )
        for rank in range(2)
    ]
    setup = EngineSetup(
        depth=1, tiers=Tiers.HOST, scheduler=scheduler_of(rng), clock=skewed_clocks(rng)
    )
    options = {"wait_timeout_s": 0.004, "ready_timeout_s": 0.004, "recovery_interval_s": 0.01}
    deployment = deploy(stores, Topology(tp=2), setup=setup, max_host_pages=20, **options)
    traffic = Traffic(rng)
    for _ in range(80):
        traffic.step(deployment)
        deployment.world.round()  # compares tables, plans and releases of both
        deployment.engine.rest()
    traffic.end(deployment)
    traffic.check(deployment)
    first, second = (engine.scheduler.storage_counts for engine in deployment.world.engines)
    assert first == second


def test_many_requests_that_share_pages_survive_a_failed_load(deploy: Deploy) -> None:
    """L3-16: when the load of pages fails that requests share, each of them computes them."""
    store = ScriptedStore()
    first = deploy(store)
    first.ask("fill", range(1, 120), budget=2)
    first.settle()
    for landing in range(8):
        deployment = deploy(ScriptedStore(store.objects, landing=landing))
        share_a_prefix(deployment)
        deployment.settle()
        assert deployment.held == [0]


def share_a_prefix(deployment: Any) -> None:
    """Three requests of one prompt at once get their tokens."""
    names = ["q0", "q1", "q2"]
    deployment.world.put(*(request(name, range(1, 120), budget=4) for name in names))
    received = deployment.engine.received
    deployment.until(lambda: all(received[name].finish for name in names))
    assert [received[name].tokens for name in names] == [telling_tokens(4)] * 3

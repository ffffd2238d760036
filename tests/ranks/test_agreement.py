# SPDX-License-Identifier: MIT
"""What ranks must agree on before and in every round, and what they may differ in."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from attrs import evolve

from tokenspeed_core.composition.fingerprint import agree
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.ranks.mesh import ranks_of
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.requests.table import MARKER_LIFETIME_S
from tokenspeed_core.testing import EngineSetup, WorldFixture, request, thread_meshes
from tokenspeed_hookspecs import AbortRequests

FACTS: dict[str, Any] = {
    "plugins": ["a", "b"],
    "engine": {"depth": 1, "model": "m"},
    "versions": {"a": "1.0", "b": "2.0"},
}


def told(topology: Topology, facts: list[dict[str, Any]]) -> list[list[str]]:
    """What each rank's start says of these facts."""
    meshes = thread_meshes(topology.world_size)

    def start(rank: int) -> list[str]:
        try:
            agree(facts[rank], ranks_of(topology, meshes[rank]))
        except CompositionError as error:
            return error.problems
        return []

    with ThreadPoolExecutor(topology.world_size) as pool:
        return list(pool.map(start, range(topology.world_size)))


@pytest.mark.parametrize("topology", [Topology(tp=2), Topology(dp=2)], ids=str)
def test_a_rank_that_is_composed_differently_never_reaches_a_round(topology: Topology) -> None:
    """Every rank stops, and is told each difference with both values."""
    other = {
        "plugins": ["a", "b"],
        "engine": {"depth": 0, "model": "m"},
        "versions": {"a": "1.0", "b": "2.1"},
    }
    expected = [
        "engine.depth: 1 on member 0, 0 on member 1",
        "versions.b: '2.0' on member 0, '2.1' on member 1",
    ]
    assert told(topology, [FACTS, other]) == [expected, expected]


def test_a_plugin_that_only_one_rank_has_is_named() -> None:
    """The two lists are shown, in their order."""
    other = {**FACTS, "plugins": ["b", "a"]}
    assert told(Topology(tp=2), [FACTS, other])[0] == [
        "plugins: ['a', 'b'] on member 0, ['b', 'a'] on member 1"
    ]


def test_equal_ranks_start() -> None:
    """Nothing is said of them."""
    assert told(Topology(tp=2, dp=2), [FACTS] * 4) == [[]] * 4


def test_an_early_abort_expires_on_all_ranks_in_the_same_round() -> None:
    """Ranks whose clocks differ by minutes drop it together: the first one's clock counts."""
    skews = itertools.count(0, -MARKER_LIFETIME_S)
    world = WorldFixture(Topology(tp=3), EngineSetup())
    with world:
        times = [next(skews) for _ in world.engines]
        for engine, start in zip(world.engines, times, strict=True):
            ticks = itertools.count(start, MARKER_LIFETIME_S / 4)
            engine.loop._parts = evolve(engine.loop._parts, clock=ticks.__next__)
        world.put(AbortRequests(("early",)))
        world.rounds(3)
        world.put(request("early", 5, budget=3))
        world.rounds(5)  # each compares the ranks' tables
        world.to_idle()

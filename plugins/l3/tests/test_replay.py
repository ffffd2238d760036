# SPDX-License-Identifier: MIT
"""A recording with the plugin runs again to the same answers, and asks no store for anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.recording.replay import replay
from tokenspeed_core.testing import EngineSetup, Tiers, WorldFixture, request, thread_meshes
from tokenspeed_hookspecs import AbortRequests, ControlRequest
from tokenspeed_l3.addresses import open_store, parse_address
from tokenspeed_l3.store import BrowsableStore


def recorded(folder: Path, topology: Topology, *, name: str) -> None:
    """Two engines after each other: the second one finds what the first one put."""
    table = {"store": f"memory:{name}", "min_prefetch_tokens": 1}
    for life in ("first", "second"):
        setup = EngineSetup(
            depth=1,
            tiers=Tiers.HOST,
            plugins=("l3",),
            tables={"l3": table},
            record=str(folder / f"{life}.tape"),
        )
        meshes = thread_meshes(topology.world_size)
        with WorldFixture(topology, setup, meshes=meshes) as world:
            live(world, num_cached=0 if life == "first" else 64, flushes=life == "second")


def live(world: WorldFixture, *, num_cached: int, flushes: bool) -> None:
    """Requests, an abort, perhaps a flush, and some rounds with nothing to do."""
    world.put(request("a", range(1, 66), budget=4), request("b", range(200, 290), budget=3))
    received = world.engine().received
    world.run_until(lambda: received["a"].finish and received["b"].finish)
    assert received["a"].chunks[-1].cached_tokens == num_cached
    world.put(request("c", range(400, 470), budget=3), AbortRequests(("c",)))
    world.rounds(3)
    if flushes:
        world.put(ControlRequest("flush_cache"))
        world.run_until(lambda: received.replies)
    world.run_until(lambda: all(each.is_quiet for each in world.engines))
    world.rounds(5)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_replay_gives_the_same_answers_and_leaves_the_store_alone(
    tmp_path: Path, tp: int
) -> None:
    """Each rank's file by itself, although no store and no host tier is there."""
    name = f"replay-{tp}"
    recorded(tmp_path, Topology(tp=tp), name=name)
    store = open_store(parse_address(f"memory:{name}"))
    assert isinstance(store, BrowsableStore)
    assert list(store.objects()) == []  # the flush removed them
    for life in ("first", "second"):
        for rank in range(tp):
            suffix = f".{rank}.tape" if rank else ".tape"
            found = replay((tmp_path / life).with_suffix(suffix))
            assert (found.parted, found.failure, found.unreplayed) == ("", "", 0)
            assert found.rounds > 5
            assert found.ends.get("length") == (None if rank else 2)
    assert list(store.objects()) == []

# SPDX-License-Identifier: MIT
"""The acceptance scenarios of several ranks, with their numbers, over both mesh drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from tokenspeed_core.loop.gate import NOT_FLUSHED
from tokenspeed_core.ranks.mesh import Mesh
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.ranks.zmq_mesh import ZmqMesh
from tokenspeed_core.testing import (
    EngineSetup,
    ScriptedFrontend,
    Stream,
    Tiers,
    WorldFixture,
    request,
    telling_tokens,
    thread_meshes,
)
from tokenspeed_hookspecs import (
    AddRequest,
    CacheOperationKind,
    ControlRequest,
    LogprobOptions,
    SamplingParams,
)

Build = Callable[..., WorldFixture]


def zmq_meshes(size: int, folder: Path) -> list[Mesh]:
    """So many ranks, connected over ipc."""
    meshes = [ZmqMesh(rank) for rank in range(size)]
    bound = {mesh.rank: mesh.bind(f"ipc://{folder}/{mesh.rank}") for mesh in meshes}
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda mesh: mesh.connect(bound), meshes))
    return list(meshes)


@pytest.fixture(params=["threads", "zmq"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Build]:
    """Makes a world of ranks, and closes it."""
    made: list[WorldFixture] = []

    def make(topology: Topology, setup: EngineSetup, **more: Any) -> WorldFixture:
        size = topology.world_size
        is_zmq = request.param == "zmq"
        meshes = zmq_meshes(size, tmp_path) if is_zmq else thread_meshes(size)
        made.append(WorldFixture(topology, setup, meshes=meshes, **more))
        return made[-1]

    yield make
    for world in made:
        world.close()


def ends(world: WorldFixture, *names: str, replica: int = 0) -> list[Stream]:
    """Run until these requests ended; their streams."""
    received = world.engine(replica).received
    world.run_until(lambda: all(received[name].finish for name in names))
    return [received[name] for name in names]


def released(world: WorldFixture, rank: int) -> list[tuple[str, int]]:
    """The requests a rank's device let go of, with the tokens each was given."""
    return world.engines[rank].plane.released


def test_prompt_logprobs_and_alternatives_reach_the_frontend(build: Build) -> None:
    """On two mirrored ranks the scores are those of one."""
    world = build(Topology(tp=2), EngineSetup(depth=1))
    scored = LogprobOptions(start=100, top=2)
    world.put(
        request("scored", 600, budget=1, logprobs=scored),
        request("sampled", 5, budget=3, logprobs=LogprobOptions()),
        request("again", 600, budget=1, logprobs=LogprobOptions(start=100)),
    )
    first, sampled, again = ends(world, "scored", "sampled", "again")
    prompts = [chunk.details.prompt for chunk in first.chunks if chunk.details]
    (prompt,) = [each for each in prompts if each is not None]
    assert (prompt.token_ids[0], prompt.token_ids[-1]) == (101, 600)
    assert prompt.values[:2] == [None, pytest.approx(-10.1)]
    assert prompt.alternatives is not None
    assert [chunk.details.alternatives for chunk in again.chunks if chunk.details] == [None]
    assert sampled.logprobs == pytest.approx([-1.0, -1.001, -1.002])
    world.to_idle()


def test_prompt_logprobs_reach_the_frontend_from_the_last_stage(build: Build) -> None:
    """The stage that samples has the scores; the stage with the frontend sends them."""
    world = build(Topology(pp=2), EngineSetup(depth=2))
    world.put(request("r", 600, budget=2, logprobs=LogprobOptions(start=100)))
    (stream,) = ends(world, "r")
    assert stream.tokens == [1000, 1001]
    prompts = [chunk.details.prompt for chunk in stream.chunks if chunk.details]
    (prompt,) = [each for each in prompts if each is not None]
    assert prompt.values[:2] == [None, pytest.approx(-10.1)]
    assert prompt.token_ids == list(range(101, 601))
    world.to_idle()


@pytest.mark.parametrize("depth", [0, 1])
def test_tensor_parallel_ranks_mirror_one_scheduler(build: Build, depth: int) -> None:
    """With retraction forced, both ranks released the same requests with the same counts."""
    world = build(Topology(tp=2), EngineSetup(depth=depth, tiers=Tiers.FORCED_RETRACTION))
    names = [f"r{index}" for index in range(4)]
    world.put(*(request(n, 20 + i, budget=8 + i) for i, n in enumerate(names)))
    for index, stream in enumerate(ends(world, *names)):
        assert stream.tokens == telling_tokens(8 + index)
    world.to_idle()
    assert released(world, 0) == released(world, 1)
    assert len(released(world, 0)) == 4
    assert world.engines[0].count(CacheOperationKind.SNAPSHOT) > 0


def test_an_idle_data_parallel_rank_forwards_with_the_busy_one(build: Build) -> None:
    """Its forwards are idle while the other's are not, and its own requests run normally later."""
    world = build(Topology(dp=2), EngineSetup(depth=1))
    names = [f"r{index}" for index in range(3)]
    world.put(*(request(name, 30, budget=6) for name in names), replica=0)
    assert [stream.tokens for stream in ends(world, *names)] == [telling_tokens(6)] * 3
    world.to_idle()
    assert (len(released(world, 0)), released(world, 1)) == (3, [])
    assert world.engines[1].plane.num_idle_forwards > 0
    assert world.engines[0].plane.num_idle_forwards == 0
    world.put(request("s0", 10, budget=3), replica=1)
    (stream,) = ends(world, "s0", replica=1)
    world.to_idle()
    assert stream.tokens == telling_tokens(3)
    assert released(world, 1) == [("s0", 4)]


def test_pipeline_stages_commit_the_last_stages_tokens(build: Build) -> None:
    """The first stage samples placeholders, and sends and finishes by the last one's tokens."""
    world = build(Topology(pp=2), EngineSetup(depth=2))
    names = [f"r{index}" for index in range(4)]
    world.put(*(request(n, 256 + 20 * i, budget=3 + i) for i, n in enumerate(names)))
    for index, stream in enumerate(ends(world, *names)):
        assert stream.tokens == telling_tokens(3 + index)
    world.to_idle()
    first, last = [[name for name, _ in released(world, rank)] for rank in (0, 1)]
    assert first == last
    assert sorted(first) == names


@pytest.mark.parametrize(
    "wishes", [{"seed": 2**70}, {"features": {"x": object()}}, {"request_id": "\ud800"}]
)
def test_what_other_ranks_cannot_be_told_is_refused(
    build: Build, wishes: dict[str, object]
) -> None:
    """It ends alone; the ranks go on alike."""
    world = build(Topology(tp=2), EngineSetup())
    features = cast("dict[str, object]", wishes.get("features", {}))
    name = str(wishes.get("request_id", "odd"))
    sampling = SamplingParams(seed=cast("int | None", wishes.get("seed")))
    world.put(AddRequest(name, [1], sampling, features=features), request("r", 5, budget=2))
    world.put(ControlRequest("own", {"x": object()}))
    odd, plain = ends(world, name, "r")
    assert odd.finish is not None
    assert "cannot be told" in str(odd.finish.message)
    assert plain.tokens == [1000, 1001]
    assert [reply.success for reply in world.engine(0).received.replies] == [False]
    world.to_idle()


def test_an_engine_stops_once_its_frontend_is_gone(build: Build) -> None:
    """Both ranks end in the same round, by themselves."""
    frontend = ScriptedFrontend([[request("r", 5, budget=3)]])
    world = build(Topology(tp=2), EngineSetup(depth=0), frontends={0: frontend})
    assert world.round() == [True, True]


def test_flushes_and_weight_updates_run_on_every_data_parallel_rank(build: Build) -> None:
    """Each rank answers for itself, and each device loaded once."""
    world = build(Topology(dp=2), EngineSetup(depth=1))
    world.put(ControlRequest("flush_cache"))
    world.put(ControlRequest("update_weights_from_disk", {"model_path": "m"}))
    world.rounds(3)
    replies = [world.engine(replica).received.replies for replica in (0, 1)]
    expected = [("flush_cache", True), ("update_weights_from_disk", True)]
    assert [[(reply.name, reply.success) for reply in each] for each in replies] == [expected] * 2
    assert [engine.plane.asked.done for engine in world.engines] == [[expected[1][0]]] * 2
    world.put(request("r", 5, budget=2), replica=1)
    assert ends(world, "r", replica=1)[0].tokens == [1000, 1001]
    world.to_idle()


def test_a_weight_operation_waits_for_the_other_rank(build: Build) -> None:
    """Sent to one rank first, it runs on both in the round in which both have it."""
    world = build(Topology(dp=2), EngineSetup())
    update = ControlRequest("update_weights_from_disk", {"model_path": "m"})
    world.put(update, replica=0)
    world.rounds(3)
    assert [engine.plane.asked.done for engine in world.engines] == [[], []]
    world.put(update, replica=1)
    world.round()
    assert [len(engine.plane.asked.done) for engine in world.engines] == [1, 1]


@pytest.mark.parametrize("topology", [Topology(tp=2), Topology(dp=2)], ids=str)
@pytest.mark.parametrize("failing", [0, 1])
def test_an_update_that_fails_on_one_rank_is_made_on_none(
    build: Build, *, topology: Topology, failing: int
) -> None:
    """Every owner names the rank and its reason, whichever it is; no device put it in place."""
    world = build(topology, EngineSetup())
    world.engines[failing].plane.asked.failures["update_weights_from_disk"] = "disk is gone"
    world.put(ControlRequest("update_weights_from_disk", {"model_path": "m"}))
    world.rounds(2)
    told = [world.engine(replica).received.replies for replica in range(topology.dp)]
    message = f"update_weights_from_disk failed on rank {failing}: disk is gone"
    assert [[(each.success, each.message) for each in own] for own in told] == [
        [(False, message)]
    ] * topology.dp
    assert [engine.plane.asked.applied for engine in world.engines] == [[], []]
    world.engines[failing].plane.asked.failures.clear()
    world.put(ControlRequest("update_weights_from_disk", {"model_path": "m"}))
    world.rounds(2)
    assert [len(engine.plane.asked.applied) for engine in world.engines] == [1, 1]


def test_a_cache_pinned_on_one_rank_keeps_all_from_loading(build: Build) -> None:
    """A suspended request of one replica refuses the update of both, before a device is asked."""
    world = build(Topology(dp=2), EngineSetup(depth=1, tiers=Tiers.FORCED_RETRACTION))
    names = [f"r{index}" for index in range(4)]
    world.put(*(request(name, 20, budget=60) for name in names), replica=1)
    world.run_until(lambda: not world.engine(1).loop.scheduler.can_clear_cache())
    world.put(ControlRequest("update_weights_from_disk", {"model_path": "m"}))
    received = [world.engine(replica).received for replica in (0, 1)]
    world.run_until(lambda: all(each.replies for each in received))
    told = [[(reply.success, reply.message) for reply in each.replies] for each in received]
    assert told == [[(False, NOT_FLUSHED)]] * 2
    assert [engine.plane.asked.done for engine in world.engines] == [[], []]
    ends(world, *names, replica=1)
    world.to_idle()


def test_a_frozen_rank_forwards_idly_and_a_released_one_does_not(build: Build) -> None:
    """The busy rank's collectives need it; without weights even that is impossible."""
    world = build(Topology(dp=2), EngineSetup())
    world.put(ControlRequest("pause", {"mode": "keep"}), replica=1)
    world.put(request("r", 5, budget=10), replica=0)
    ends(world, "r")
    assert world.engines[1].plane.num_idle_forwards > 0
    world.put(ControlRequest("release_memory"))
    world.run_until(lambda: all(len(e.plane.asked.done) == 1 for e in world.engines))
    before = [engine.plane.num_idle_forwards for engine in world.engines]
    world.rounds(3)
    assert [engine.plane.num_idle_forwards for engine in world.engines] == before

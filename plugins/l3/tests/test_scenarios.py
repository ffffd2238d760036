# SPDX-License-Identifier: MIT
"""The acceptance scenarios of the store, with their numbers; every page that is read is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import EngineSetup, ManualFrontend, Tiers, request, telling_tokens
from tokenspeed_hookspecs import AbortRequests, CacheOperationKind, ControlRequest, Message
from tokenspeed_l3.testing import ScriptedStore

Deploy = Callable[..., Any]
TP2 = Topology(tp=2)
PROMPT = range(1, 66)


def released(deployment: Any, rank: int) -> list[tuple[str, int]]:
    """The requests a rank's device let go of, with the tokens each was given."""
    found: list[tuple[str, int]] = deployment.world.engines[rank].plane.released
    return found


def filled(deploy: Deploy, topology: Topology = TP2) -> dict[str, bytes]:
    """The objects that an engine leaves of the scenario's prompt."""
    store = ScriptedStore()
    deployment = deploy(store, topology)
    deployment.ask("before", PROMPT, budget=4)
    deployment.settle()
    return store.objects


def test_an_l3_get_admits_the_prefix_every_owner_landed(deploy_over: Deploy) -> None:
    """Four pages land on one rank and two on the other: both admit the two, and load them back."""
    objects = filled(deploy_over)
    stores = [ScriptedStore(objects, landing=4), ScriptedStore(objects, landing=2)]
    deployment = deploy_over(stores, TP2)
    stream = deployment.ask("r0", PROMPT, budget=4)
    assert stream.tokens == telling_tokens(4)
    assert deployment.cached("r0") == 32
    assert [(store.calls["query"], store.calls["get"]) for store in stores] == [(1, 1), (1, 1)]
    assert deployment.engine.count(CacheOperationKind.LOAD_BACK) > 0
    deployment.settle()
    assert released(deployment, 0) == released(deployment, 1)
    assert deployment.held == [0, 0]


def test_an_abort_while_storage_prepares_finishes_the_request(deploy_over: Deploy) -> None:
    """It ends on both ranks without a forward, and nothing is fetched for it."""
    stores = [ScriptedStore(shut={"query"}) for _ in range(2)]
    deployment = deploy_over(stores, TP2)
    deployment.world.put(request("r0", PROMPT, budget=4))
    deployment.until(lambda: all(store.calls["query"] for store in stores))
    deployment.world.put(AbortRequests(("r0",)))
    deployment.until(lambda: released(deployment, 0) and released(deployment, 1))
    for store in stores:
        store.open()
    deployment.settle()
    assert [released(deployment, rank) for rank in range(2)] == [[("r0", 0)], [("r0", 0)]]
    assert [store.calls["get"] for store in stores] == [0, 0]
    assert deployment.held == [0, 0]


def test_a_flush_under_a_keep_pause_runs_once_the_cache_work_did(deploy: Deploy) -> None:
    """Frozen, the engine stores nothing; the store's objects go with the cache."""

    def react(request_id: str, chunk: Any) -> Sequence[Message]:
        is_end = chunk.finish is not None
        return [ControlRequest("pause", {"mode": "keep"})] if is_end else []

    store = ScriptedStore()
    setup = EngineSetup(depth=0, tiers=Tiers.HOST)
    deployment = deploy(store, setup=setup, world={"frontends": {0: ManualFrontend(react)}})
    engine = deployment.engine
    deployment.world.put(request("r1", 65, budget=2))
    deployment.until(lambda: engine.received.replies)
    engine.rounds(30)
    deployment.world.put(ControlRequest("flush_cache"))
    deployment.until(lambda: len(engine.received.replies) == 2)
    assert engine.received["r1"].kind == "length"
    replies = [(reply.name, reply.success) for reply in engine.received.replies]
    assert replies == [("pause", True), ("flush_cache", True)]
    assert engine.count(CacheOperationKind.WRITE_BACK) > 0
    assert (store.calls["remove"], store.objects) == (1, {})

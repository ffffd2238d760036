# SPDX-License-Identifier: MIT
"""Flushes and new weights: what is forgotten, and what is not stored under a wrong name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import request
from tokenspeed_hookspecs import AbortRequests, ControlRequest
from tokenspeed_l3.testing import ScriptedStore

Deploy = Callable[..., Any]
PROMPT = range(1, 66)


def fill(deploy: Deploy, store: ScriptedStore, topology: Topology | None = None) -> None:
    """Leave the prompt's pages in a store."""
    deployment = deploy(store, topology)
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    assert store.objects


def test_a_flush_removes_the_namespace(deploy: Deploy) -> None:
    """Afterwards no engine finds the pages, and another deployment's are still there."""
    store = ScriptedStore()
    fill(deploy, store)
    other = deploy(store, deployment_id="other")
    other.ask("theirs", PROMPT, budget=4)
    other.settle()
    deployment = deploy(store)
    assert deployment.operate("flush_cache").success
    assert {key.partition("-")[0] for key in store.objects} == {"other"}
    deployment.ask("second", PROMPT, budget=4)
    assert deployment.cached("second") == 0


def test_a_flush_that_fails_on_one_rank_leaves_all_as_it_was(deploy: Deploy) -> None:
    """The reply says so, and the device's prefixes are still used."""
    stores = [ScriptedStore(), ScriptedStore(down={"remove"})]
    deployment = deploy(stores, Topology(tp=2))
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    reply = deployment.operate("flush_cache")
    assert not reply.success
    assert "what a plugin keeps of it elsewhere could not be removed" in reply.message
    deployment.ask("second", PROMPT, budget=4)
    assert deployment.cached("second") > 0


@pytest.mark.parametrize("topology", [Topology(), Topology(dp=2)])
def test_flushed_weights_have_a_namespace_of_their_own(deploy: Deploy, topology: Topology) -> None:
    """After the update nothing of the old weights is found, and both versions are kept apart."""
    store = ScriptedStore()
    deployment = deploy(store, topology)
    deployment.ask("old", PROMPT, budget=4)
    deployment.settle()
    before = deployment.plugin().namespace
    update = {"model_path": "x", "load_format": "auto", "weight_version": "v2"}
    assert deployment.operate("update_weights_from_disk", **update).success
    assert len({deployment.plugin(rank).namespace for rank in range(topology.world_size)}) == 1
    assert deployment.plugin().namespace != before
    deployment.ask("new", PROMPT, budget=4)
    assert deployment.cached("new") == 0
    deployment.settle()
    assert {key.partition("/")[0] for key in store.objects} == {deployment.plugin().namespace}


def test_an_update_named_as_the_first_weights_has_a_namespace_of_its_own(deploy: Deploy) -> None:
    """That name may be the default, and engines that were not updated still use it."""
    store = ScriptedStore()
    deployment, other = deploy(store), deploy(store)
    update = {"model_path": "x", "weight_version": deployment.plugin().options.weight_version}
    assert deployment.operate("update_weights_from_disk", **update).success
    deployment.ask("new", PROMPT, budget=4)
    deployment.settle()
    assert store.objects
    other.ask("old", PROMPT, budget=4)
    assert other.cached("old") == 0


def test_a_flushed_update_without_a_version_is_refused_before_it_loads(deploy: Deploy) -> None:
    """The old weights stay in place."""
    deployment = deploy(ScriptedStore())
    reply = deployment.operate("update_weights_from_disk", model_path="x")
    assert (reply.success, "weight_version" in reply.message) == (False, True)
    assert deployment.engine.plane.asked.done == []


def test_after_an_update_without_a_flush_nothing_is_stored_until_one(deploy: Deploy) -> None:
    """Old pages are still cached, and must not get the new version's name."""
    store = ScriptedStore()
    deployment = deploy(store)
    update = {"model_path": "x", "weight_version": "v2", "flush_cache": False}
    assert deployment.operate("update_weights_from_disk", **update).success
    deployment.ask("mixed", PROMPT, budget=4)
    deployment.settle()
    assert (store.calls["query"], store.calls["put"]) == (0, 0)
    assert deployment.operate("flush_cache").success
    deployment.ask("clean", PROMPT, budget=4)
    deployment.settle()
    assert all("-v2-" in key for key in store.objects)
    assert store.objects


def test_requests_that_run_on_through_a_flushed_update_are_not_stored(deploy: Deploy) -> None:
    """Their pages are of both weights; only a flush without them lets anything be stored again."""
    store = ScriptedStore()
    deployment = deploy(store)
    deployment.world.put(request("running", 40, budget=200))
    deployment.until(lambda: deployment.engine.received["running"].chunks)
    update = {"model_path": "x", "weight_version": "v2"}
    reply = deployment.operate("update_weights_from_disk", **update)
    puts = store.calls["put"]
    deployment.until(lambda: deployment.engine.received["running"].finish)
    deployment.settle()
    if reply.success:
        assert store.calls["put"] == puts
    assert not any("-v2-" in key for key in store.objects)
    assert deployment.operate("flush_cache").success
    deployment.ask("clean", PROMPT, budget=4)
    deployment.settle()
    assert store.objects


@pytest.mark.parametrize("name", [{}, {"weight_version": ""}])
def test_weights_without_a_version_are_not_stored_until_an_update_names_one(
    deploy: Deploy, name: dict[str, str]
) -> None:
    """Under the old name others would take their pages for those of the old weights."""
    store = ScriptedStore()
    deployment = deploy(store)
    unnamed = {"model_path": "x", "flush_cache": False, **name}
    assert deployment.operate("update_weights_from_disk", **unnamed).success
    assert deployment.operate("flush_cache").success
    deployment.ask("unnamed", PROMPT, budget=4)
    deployment.settle()
    assert store.objects == {}
    named = {"model_path": "x", "weight_version": "v3"}
    assert deployment.operate("update_weights_from_disk", **named).success
    deployment.ask("named", range(200, 260), budget=4)
    deployment.settle()
    assert store.objects
    assert all("-v3-" in key for key in store.objects)


def test_a_flush_waits_for_what_one_rank_still_fetches(deploy: Deploy) -> None:
    """Its store is slow: no rank forgets anything before all of them can."""
    objects = ScriptedStore()
    fill(deploy, objects, Topology(tp=2))
    stores = [ScriptedStore(objects.objects), ScriptedStore(objects.objects, shut={"get"})]
    deployment = deploy(stores, Topology(tp=2))
    deployment.world.put(request("slow", PROMPT, budget=4))
    deployment.until(lambda: stores[1].calls["get"])
    deployment.world.put(AbortRequests(("slow",)), ControlRequest("flush_cache"))
    deployment.world.rounds(20)
    assert (deployment.engine.received.replies, stores[0].calls["remove"]) == ([], 0)
    stores[1].open()
    deployment.until(lambda: deployment.engine.received.replies)
    assert deployment.engine.received.replies[0].success
    assert objects.objects == {}


def test_a_flush_waits_for_what_another_replica_still_stores(deploy: Deploy) -> None:
    """Its store is slow: both replicas forget, and say so, once its put has ended."""
    stores = [ScriptedStore(), ScriptedStore(shut={"put"})]
    deployment = deploy(stores, Topology(dp=2))
    deployment.ask("first", PROMPT, budget=4, replica=1)
    deployment.until(lambda: stores[1].calls["put"])
    deployment.world.put(ControlRequest("flush_cache"))
    deployment.world.rounds(20)
    told = [deployment.world.engine(replica).received.replies for replica in range(2)]
    assert (told, stores[1].calls["remove"]) == ([[], []], 0)
    stores[1].open()
    deployment.until(lambda: all(told))
    assert [[reply.success for reply in replies] for replies in told] == [[True], [True]]
    assert stores[1].objects == {}


def test_a_pause_waits_for_a_request_that_waits_for_the_store(deploy: Deploy) -> None:
    """It counts as waiting, so the pause answers once it is done."""
    store = ScriptedStore(shut={"query"})
    deployment = deploy(store)
    deployment.world.put(request("r", PROMPT, budget=4))
    deployment.until(lambda: store.calls["query"])
    deployment.world.put(ControlRequest("pause", {"mode": "wait"}))
    deployment.world.rounds(20)
    assert deployment.engine.received.replies == []
    store.open()
    deployment.until(lambda: deployment.engine.received.replies)
    assert deployment.engine.received["r"].kind == "length"


def test_a_release_of_the_memory_leaves_the_store_as_it_is(deploy: Deploy) -> None:
    """The device's pages go; those on the host and in the store are of use afterwards."""
    store = ScriptedStore()
    deployment = deploy(store)
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    stored = dict(store.objects)
    assert deployment.operate("release_memory").success
    assert deployment.operate("resume_memory").success
    assert (store.objects, store.calls["remove"]) == (stored, 0)
    deployment.ask("second", PROMPT, budget=4)
    told = deployment.engine.received["second"].chunks[-1]
    assert (told.cached_tokens, told.details.cached_by_tier["host"]) == (64, 64)


def test_frozen_the_store_is_left_alone_and_what_runs_ends(deploy: Deploy) -> None:
    """A request that waits goes on where it was once the pause is over."""
    store = ScriptedStore()
    fill(deploy, store)
    other = ScriptedStore(store.objects, shut={"query"})
    deployment = deploy(other)
    deployment.world.put(request("r", PROMPT, budget=4))
    deployment.until(lambda: other.calls["query"])
    assert deployment.operate("pause", mode="keep").success
    other.open()
    deployment.world.rounds(30)
    assert (other.calls["get"], deployment.engine.received["r"].chunks) == (0, [])
    assert deployment.operate("resume").success
    deployment.until(lambda: deployment.engine.received["r"].finish)
    assert deployment.cached("r") == 64

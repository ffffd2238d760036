# SPDX-License-Identifier: MIT
"""The tier as requests see it: what a store does may shorten a prefix, and never changes a token.

The scripted plane checks every cached position that a forward reads, so a page of another prefix,
rank or stage would end the test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import EngineSetup, Tiers, request, telling_tokens
from tokenspeed_core.testing.scripted_options import RowFault
from tokenspeed_hookspecs import AbortRequests
from tokenspeed_l3.store import IoResult
from tokenspeed_l3.testing import ScriptedStore

Deploy = Callable[..., Any]
PROMPT = range(1, 66)
TOKENS = telling_tokens(4)


def fill(deploy: Deploy, store: ScriptedStore, topology: Topology | None = None) -> None:
    """Leave the prompt's pages in a store."""
    deployment = deploy(store, topology)
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    assert store.objects


@pytest.mark.parametrize("topology", [Topology(), Topology(tp=2), Topology(pp=2)])
def test_an_engine_that_starts_again_has_its_prefixes(deploy: Deploy, topology: Topology) -> None:
    """A new engine on the same store begins behind the pages of the old one, on every rank."""
    store = ScriptedStore()
    depth = max(1, topology.pp)
    setup = EngineSetup(depth=depth, tiers=Tiers.HOST)
    deployment = deploy(store, topology, setup=setup)
    assert deployment.ask("first", PROMPT, budget=4).tokens == TOKENS
    assert deployment.cached("first") == 0
    deployment.settle()
    again = deploy(store, topology, setup=setup)
    assert again.ask("second", PROMPT, budget=4).tokens == TOKENS
    assert again.cached("second") == 64
    again.settle()
    assert again.held == [0] * topology.world_size


def test_cached_tokens_say_that_the_store_had_them(deploy: Deploy) -> None:
    """Once: from then on they are the host tier's, or the device's."""
    store = ScriptedStore()
    fill(deploy, store)
    deployment = deploy(store)
    tiers = []
    for name in ("first", "second"):
        details = deployment.ask(name, PROMPT, budget=4).chunks[-1].details
        tiers.append(details.cached_by_tier)
        deployment.settle()
    assert tiers == [{"device": 0, "host": 0, "storage": 64}, None]


def test_replicas_share_what_one_of_them_put(deploy: Deploy) -> None:
    """With data parallelism the second replica fetches what the first one computed."""
    store = ScriptedStore()
    deployment = deploy(store, Topology(dp=2))
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    assert deployment.ask("second", PROMPT, budget=4, replica=1).tokens == TOKENS
    assert deployment.cached("second", replica=1) == 64


def test_of_ranks_with_equal_bytes_one_puts(deploy: Deploy) -> None:
    """The group has one part, so two ranks hold the same; both of them fetch it."""
    stores = [ScriptedStore(), ScriptedStore()]
    setup = EngineSetup(tiers=Tiers.HOST, plane={"shard_count": 1, "shard": 0})
    deployment = deploy(stores, Topology(tp=2), setup=setup)
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    assert (stores[0].calls["put"] > 0, stores[1].calls["put"]) == (True, 0)
    stores[1].objects.update(stores[0].objects)
    again = deploy(stores, Topology(tp=2), setup=setup)
    again.ask("second", PROMPT, budget=4)
    assert again.cached("second") == 64


@pytest.mark.parametrize(
    ("trouble", "cached"),
    [
        ({"down": {"query"}}, 0),
        ({"down": {"get"}}, 0),
        ({"down": {"get"}, "failures_retire": False}, 0),
        ({"landing": 3}, 48),
        ({"landing": 0}, 0),
        ({"answer": lambda call, n: IoResult([True] * (n + 1)) if call == "get" else None}, 0),
    ],
)
def test_what_a_store_does_wrong_costs_only_time(
    deploy: Deploy, trouble: dict[str, Any], cached: int
) -> None:
    """It is down, lands less, or answers nonsense: the rest is computed."""
    store = ScriptedStore()
    fill(deploy, store)
    deployment = deploy(ScriptedStore(store.objects, **trouble))
    assert deployment.ask("second", PROMPT, budget=4).tokens == TOKENS
    assert deployment.cached("second") == cached


@pytest.mark.parametrize("damage", ["short", "long", "gone", "bad"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_damaged_object_ends_the_prefix(deploy: Deploy, damage: str, at: int) -> None:
    """What is in front of it is used."""
    store = ScriptedStore()
    fill(deploy, store)
    looked_for: list[str] = []
    probe = deploy(other := ScriptedStore())
    probe.ask("probe", PROMPT, budget=1)
    looked_for = [key for key in other.keys if key in store.objects][:4]
    key = looked_for[at]
    if damage == "short":
        store.objects[key] = store.objects[key][:-1]
    elif damage == "long":
        store.objects[key] += b"x"
    elif damage == "gone":
        del store.objects[key]
    else:
        store.damaged.add(key)
    deployment = deploy(store)
    assert deployment.ask("second", PROMPT, budget=4).tokens == TOKENS
    assert deployment.cached("second") == 16 * at


def test_a_stuck_store_costs_a_request_its_wait_and_no_more(deploy: Deploy) -> None:
    """The request runs without its prefix once its time is over; others never noticed."""
    store = ScriptedStore()
    fill(deploy, store)
    store.shut = {"get"}
    deployment = deploy(store, wait_timeout_s=0.05)
    assert deployment.ask("stuck", PROMPT, budget=4).tokens == TOKENS
    assert deployment.cached("stuck") == 0
    assert deployment.ask("other", range(500, 540), budget=4).tokens == TOKENS
    assert deployment.engine.scheduler.storage_counts["wait_timeouts"] > 0
    store.open()
    deployment.settle()
    assert deployment.held == [0]


def test_rounds_go_on_while_the_store_hangs(deploy: Deploy) -> None:
    """L3-11: no round waits for it: another request is served while every call is stuck."""
    store = ScriptedStore(shut={"query", "get", "put"})
    deployment = deploy(store, min_prefetch_tokens=16)
    deployment.world.put(request("stuck", PROMPT, budget=4))
    deployment.until(lambda: store.calls["query"])
    begin = time.monotonic()
    deployment.world.put(request("small", 3, budget=4))
    deployment.world.run_until(lambda: deployment.engine.received["small"].finish)
    assert time.monotonic() - begin < 10
    assert deployment.engine.received["stuck"].finish is None


def test_pages_on_their_way_to_the_store_are_still_on_the_host(deploy: Deploy) -> None:
    """A second turn that comes before the first one's put is done is not looked for in the store:
    its pages are held on the host, and found there although the device lost them."""
    store = ScriptedStore(shut={"put"})
    setup = EngineSetup(depth=1, tiers=Tiers.HOST, scheduler={"num_pages": 16})
    deployment = deploy(store, setup=setup)
    deployment.ask("first", PROMPT, budget=4)
    deployment.until(lambda: store.calls["put"])
    for number in range(3):
        deployment.ask(f"other{number}", range(1000 * number + 500, 1000 * number + 620), budget=1)
    queries = store.calls["query"]
    assert deployment.ask("again", PROMPT, budget=4).tokens == TOKENS
    told = deployment.engine.received["again"].chunks[-1]
    assert (told.cached_tokens, told.details.cached_by_tier["host"]) == (64, 64)
    assert store.calls["query"] == queries
    store.open()
    deployment.settle()
    assert deployment.held == [0]


@pytest.mark.parametrize("late", [1, 2, 5])
@pytest.mark.parametrize("call", ["query", "get"])
def test_a_report_that_comes_after_an_abort_is_taken_quietly(
    deploy: Deploy, call: str, late: int
) -> None:
    """LIFE-01: its client went away while the store worked: pages come back once, and others are
    untouched."""
    objects = ScriptedStore()
    fill(deploy, objects, Topology(tp=2))
    stores = [ScriptedStore(objects.objects, shut={call}) for _ in range(2)]
    deployment = deploy(stores, Topology(tp=2))
    deployment.world.put(request("gone", PROMPT, budget=4))
    deployment.until(lambda: all(store.calls[call] for store in stores))
    deployment.world.put(AbortRequests(("gone",)), request("other", 20, budget=6))
    deployment.world.rounds(late)
    stores[0].open()
    deployment.world.rounds(late)
    stores[1].open()
    deployment.until(lambda: deployment.engine.received["other"].finish)
    assert deployment.engine.received["other"].tokens == telling_tokens(6)
    deployment.settle()
    assert deployment.held == [0, 0]
    deployment.world.to_idle()


def test_pages_of_a_nan_are_never_put(deploy: Deploy) -> None:
    """NUM-02: what a broken forward left reaches nobody, on this engine or another."""
    store = ScriptedStore()
    deployment = deploy(store)
    deployment.engine.plane.faults.at_token("bad", 0, fault=RowFault(is_nan=True))
    assert deployment.ask("bad", PROMPT, budget=4).kind == "abort"
    deployment.settle()
    assert store.calls["put"] == 0
    again = deploy(store)
    again.ask("good", PROMPT, budget=4)
    assert again.cached("good") == 0


def test_pages_of_a_nan_in_a_chunk_are_never_put(deploy: Deploy) -> None:
    """They are written back long before the prompt, and with it the request, ends."""
    store = ScriptedStore()
    deployment = deploy(store)
    deployment.engine.plane.faults.at_chunk("bad", 0, fault=RowFault(is_nan=True))
    assert deployment.ask("bad", range(1, 1500), budget=4).kind == "abort"
    deployment.settle()
    assert store.calls["put"] == 0


def test_a_nan_beside_a_request_that_waits_for_the_store_holds_it_up_no_longer(
    deploy: Deploy,
) -> None:
    """Storage is forbidden until the cache was dropped, so the request goes on without."""
    store = ScriptedStore(shut={"query"})
    deployment = deploy(store, min_prefetch_tokens=16)
    deployment.engine.plane.faults.at_token("bad", 3, fault=RowFault(is_nan=True))
    deployment.world.put(request("bad", 3, budget=8), request("waits", PROMPT, budget=4))
    received = deployment.engine.received
    deployment.until(lambda: received["bad"].finish and received["waits"].finish)
    assert (received["bad"].kind, received["waits"].tokens) == ("abort", TOKENS)
    store.open()
    deployment.settle()
    assert deployment.held == [0]


def test_a_stored_prefix_is_found_behind_what_the_host_has(deploy: Deploy) -> None:
    """The host tier has the first pages and the store the next ones: each lands at its place."""
    store = ScriptedStore()
    long = range(1, 130)
    deployment = deploy(store)
    deployment.ask("long", long, budget=2)
    deployment.settle()
    for on_host in range(5):
        engine = deploy(store, min_prefetch_tokens=1)
        head = [*range(1, 16 * on_host + 2)]
        engine.ask("head", head, budget=1)
        engine.settle()
        engine.ask("long", long, budget=2)
        assert engine.cached("long") >= 16 * 7, on_host
        engine.settle()
        assert engine.held == [0]

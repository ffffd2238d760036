# SPDX-License-Identifier: MIT
"""Which engines share a store, and how one starts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tokenspeed_core.errors import CompositionError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import EngineFixture, EngineSetup, Tiers, request, telling_tokens
from tokenspeed_l3.plugin import L3
from tokenspeed_l3.store import Store, StoreError
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


@pytest.mark.parametrize(
    "other",
    [
        {"deployment_id": "other"},
        {"weight_version": "v9"},
        {"topology": Topology(tp=2)},
        {"topology": Topology(pp=2)},
        {"scheduler": {"page_size": 32}},
    ],
)
def test_engines_that_differ_find_nothing_of_each_other(
    deploy: Deploy, other: dict[str, Any]
) -> None:
    """Another deployment, version, number of ranks or page: no hit, and no wrong page either."""
    store = ScriptedStore()
    fill(deploy, store)
    options = dict(other)
    topology = options.pop("topology", Topology())
    setup = EngineSetup(depth=topology.pp, tiers=Tiers.HOST, scheduler=options.pop("scheduler", {}))
    deployment = deploy(store, topology, setup=setup, **options)
    assert deployment.ask("second", PROMPT, budget=4).tokens == TOKENS
    assert deployment.cached("second") == 0


def test_engines_that_put_the_same_pages_get_on(deploy: Deploy) -> None:
    """Two engines compute the same prompt at once and put the same keys."""
    store = ScriptedStore()
    pair = [deploy(store), deploy(store)]
    for each in pair:
        each.world.put(request("same", PROMPT, budget=4))
    for _ in range(60):
        for each in pair:
            each.world.round()
    for each in pair:
        each.settle()
        assert each.engine.received["same"].tokens == TOKENS
    third = deploy(store)
    third.ask("third", PROMPT, budget=4)
    assert third.cached("third") == 64


def test_without_a_host_tier_it_says_what_is_missing(deploy: Deploy) -> None:
    """There is nothing to fetch into."""
    with pytest.raises(CompositionError, match="--host-cache"):
        deploy(ScriptedStore(), setup=EngineSetup())


class Late(L3):
    """Its store cannot be opened before it is there."""

    store = ScriptedStore()
    is_there = False

    def open_store(self, buffers: Sequence[memoryview]) -> Store:
        if not self.is_there:
            raise StoreError("no way in")
        return self.store


def late_engine(**options: object) -> EngineFixture:
    """An engine whose store is not there yet."""
    table = {"store": "memory:late", "min_prefetch_tokens": 1, **options}
    return EngineFixture(EngineSetup(tiers=Tiers.HOST, plugins=(Late,), tables={"l3": table}))


def test_a_store_that_cannot_be_opened_ends_the_start() -> None:
    """An operator who asked for one should not find out later."""
    with pytest.raises(CompositionError, match=r"no way in; l3.required = false") as raised:
        late_engine(store="memory://user:secret@host")
    assert "secret" not in str(raised.value)


def test_a_store_that_may_be_late_is_opened_once_it_is_there() -> None:
    """Until then the engine serves without it."""
    engine = late_engine(required=False, recovery_interval_s=0.02)
    (plugin,) = (each.instance for each in engine.rank.plugins)
    assert isinstance(plugin, Late)
    engine.add("first", PROMPT, budget=4)
    assert engine.run_to_end("first")[0].tokens == TOKENS
    plugin.is_there = True
    end = time.monotonic() + 20
    number = 0
    while not plugin.store.objects:
        assert time.monotonic() < end, engine.scheduler.storage_counts
        number += 1
        engine.add(f"r{number}", range(100 * number, 100 * number + 40), budget=4)
        engine.run_to_end(f"r{number}")
        time.sleep(0.01)
    engine.rank.stop()


def test_ranks_that_hold_other_bytes_are_refused_by_what_differs(deploy: Deploy) -> None:
    """The namespace would be another on each of them."""
    with pytest.raises(CompositionError, match=r"shards is 2 on member 0 and 3 on member 1"):
        deploy(ScriptedStore(), Topology(tp=2), world={"plane": {1: {"shard_count": 3}}})


def test_the_announcement_says_where_without_saying_how_to_get_in(deploy: Deploy) -> None:
    """Addresses may hold passwords."""
    deployment = deploy(ScriptedStore(), store="memory:secret")
    told = deployment.engine.rank.announced()["l3"]
    assert told["store"] == "memory"
    assert "secret" not in json.dumps(told)

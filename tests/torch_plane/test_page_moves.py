# SPDX-License-Identifier: MIT
"""Random plans on tiny pools, held against a model that keeps one number a page.

A failure prints its seed; the same seed makes the same plans again.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attrs import define, field

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.plane import TorchDataPlane
from tokenspeed_hookspecs import (
    CacheAcknowledgment,
    CacheOperation,
    CacheOperationKind,
    Dispatch,
    PageMove,
    Plan,
)

Kind = CacheOperationKind
MakeEngine = Callable[..., TorchEngine]
NUM_PAGES, NUM_PLANS, MAX_POLLS = 10, 40, 100_000
HOST_TIER, SNAPSHOT_TIER = 0, 1


def _numbers() -> list[int]:
    return [0] * NUM_PAGES


@define(eq=False)
class Pages:
    """What each page of each pool should hold."""

    dice: random.Random
    device: list[int] = field(factory=_numbers)
    host: list[int] = field(factory=_numbers)
    snapshots: list[int] = field(factory=_numbers)
    num_operations: int = 0
    num_written: int = 0

    def written(self) -> dict[int, int]:
        """New contents for a few device pages, as a forward leaves them."""
        chosen = self.some()
        new = {page: self.num_written + number for number, page in enumerate(chosen, 1)}
        self.num_written += len(chosen)
        for page, number in new.items():
            self.device[page] = number
        return new

    def plan(self) -> Plan:
        """A plan whose pages change hands within it."""
        saves = [self._save() for _ in range(self.dice.randrange(3))]
        targets = self.some()
        pairs = [(self.dice.randrange(1, NUM_PAGES), target) for target in targets]
        found = [self.device[source] for source, _ in pairs]
        for (_, target), number in zip(pairs, found, strict=True):
            self.device[target] = number
        zeroed = self.some()
        for page in zeroed:
            self.device[page] = 0
        fills = [self._fill() for _ in range(self.dice.randrange(3))]
        copy = {"full": np.array(pairs, dtype=np.int32).reshape(-1, 2)}
        zero = {"full": np.array(zeroed, dtype=np.int32)}
        return Plan(None, (*saves, *fills), zero, copy, (), True)

    def some(self) -> list[int]:
        """A few pages, each once, in any order."""
        return self.dice.sample(range(1, NUM_PAGES), self.dice.randrange(4))

    def _save(self) -> CacheOperation:
        kind = self.dice.choice([Kind.SNAPSHOT, Kind.WRITE_BACK])
        pool = self.snapshots if kind is Kind.SNAPSHOT else self.host
        targets = self.some()
        sources = [self.dice.randrange(1, NUM_PAGES) for _ in targets]
        for source, target in zip(sources, targets, strict=True):
            pool[target] = self.device[source]
        return self._operation(kind, PageMove("full", sources, targets))

    def _fill(self) -> CacheOperation:
        kind = self.dice.choice([Kind.RESTORE, Kind.LOAD_BACK])
        targets = self.some()
        sources = [self.dice.randrange(1, NUM_PAGES) for _ in targets]
        tiers = [HOST_TIER] * len(targets)
        if kind is Kind.RESTORE:
            tiers = [self.dice.choice([HOST_TIER, SNAPSHOT_TIER]) for _ in targets]
        for source, target, tier in zip(sources, targets, tiers, strict=True):
            pool = self.host if tier == HOST_TIER else self.snapshots
            self.device[target] = pool[source]
        move = PageMove("full", sources, targets, tiers if kind is Kind.RESTORE else ())
        return self._operation(kind, move)

    def _operation(self, kind: Kind, move: PageMove) -> CacheOperation:
        self.num_operations += 1
        return CacheOperation(self.num_operations, kind, (move,))


def fill(pool: PagedKVCache, page: int, *, content: int) -> None:
    """Write a page as a forward does."""
    pool.page(page).fill_(content)


def acknowledged(plane: TorchDataPlane, count: int) -> Sequence[CacheAcknowledgment]:
    """What the plane says is in place, once it said so of this many operations."""
    found: list[CacheAcknowledgment] = []
    for _ in range(MAX_POLLS):
        found += plane.poll_cache_operations()
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} operations are in place")


@pytest.mark.parametrize("seed", range(8))
def test_every_page_holds_what_the_plans_say(start_engine: MakeEngine, seed: int) -> None:
    """What is acknowledged is in place and nothing else moved, whatever changed hands in a plan."""
    tiny_pools = {"num_pages": NUM_PAGES, "host_pages": NUM_PAGES, "snapshot_pages": NUM_PAGES}
    plane = start_engine(scheduler={**tiny_pools, "max_retracted": 2}).rank.data_plane
    assert isinstance(plane, TorchDataPlane)
    pools = plane._operating().runner.pools
    assert pools.host is not None
    assert pools.snapshots is not None
    model = Pages(random.Random(seed))
    for number in range(NUM_PLANS):
        for page, content in model.written().items():
            plane.call(partial(fill, pools.device, page, content=content))
        plan = model.plan()
        plane.execute(plan, Dispatch())
        done = acknowledged(plane, len(plan.operations))
        assert [each.op_id for each in done] == [each.op_id for each in plan.operations]
        for name, pool in (("host", pools.host), ("snapshots", pools.snapshots)):
            for page, content in enumerate(getattr(model, name)):
                assert (pool.page(page) == content).all(), f"seed {seed}, plan {number}, {name}"
        plane.call(gc.get_count)  # copies and zeroing have no acknowledgment: wait behind them
        for page, content in enumerate(model.device):
            held = pools.device.page(page)
            assert torch.all(held == content), f"seed {seed}, plan {number}, device page {page}"


def some_requests(dice: random.Random) -> list[Any]:
    """Prompts that begin alike for a while and then part, again and again."""
    stems = [dice.choices(range(290), k=130) for _ in range(3)]
    made = []
    for number in range(14):
        stem = dice.choice(stems)[: dice.randrange(1, 130)]
        prompt = stem + dice.choices(range(290), k=dice.randrange(1, 30))
        asked = request(f"r{number}", prompt, budget=dice.randrange(1, 30), temperature=0.0)
        made.append(asked)
    return made


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_without_any_tier(tiny: TinyModel, seed: int) -> None:
    """Pools so small that pages are evicted and requests retracted all the time change no token."""
    dice = random.Random(seed)
    requests = some_requests(dice)
    engine = {"threads": 1}
    off = TorchSetup(model=tiny, engine=engine, scheduler={"prefix_cache": False})
    with TorchEngine(off) as alone:
        expected = [stream.tokens for stream in alone.generate(requests, at_once=1)]
    scheduler = {
        "num_pages": dice.choice([20, 28]),
        "host_pages": dice.choice([60, 200]),
        "snapshot_pages": 33,
        "max_retracted": 8,
        "force_retraction_every": dice.choice([0, 3]),
        "max_scheduled_tokens": dice.choice([16, 48, 256]),
    }
    setup = TorchSetup(model=tiny, engine=engine, depth=seed % 2, scheduler=scheduler)
    with TorchEngine(setup) as tiered:
        for turn in range(3):
            if turn == 2:
                assert tiered.ask("release_memory", tags=["kv_cache"]).success
                assert tiered.ask("resume_memory", tags=["kv_cache"]).success
            again = [request_again(each, turn) for each in requests]
            found = tiered.generate(again, at_once=dice.choice([3, 8]))
            tokens = [stream.tokens for stream in found]
            assert tokens == expected, f"seed {seed}, turn {turn}, {scheduler}"
    assert any(by_tier(stream).get("host") for stream in found), "the device has lost everything"


def request_again(asked: Any, turn: int) -> Any:
    """The same request under a name of its own."""
    prompt, params = asked.prompt_ids, asked.sampling
    name = f"{asked.request_id}-{turn}"
    return request(name, prompt, budget=params.max_new_tokens, temperature=params.temperature)


def by_tier(stream: Any) -> Any:
    """A stream's cached tokens by tier."""
    details = stream.chunks[-1].details
    return details.cached_by_tier or {}

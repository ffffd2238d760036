# SPDX-License-Identifier: MIT
"""A store behind the host tier, through the driver: queries, gets, puts and what a tick carries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define, evolve, field

from tokenspeed_core.errors import ConfigError, EngineError
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_hookspecs import (
    CacheAcknowledgment,
    CacheGroup,
    CommitOutcome,
    Plan,
    RequestSpec,
    SchedulerSettings,
    StorageOperation,
    StorageOperationKind,
    StoragePressure,
    StorageResult,
    StorageSettings,
    StorageTick,
)

PAGE = 16
LIMITS = StorageSettings(
    max_operations=8,
    max_keys_per_operation=8,
    max_host_pages=64,
    metadata_entries=64,
    min_prefetch_tokens=1,
    max_prefetch_tokens=1024,
    wait_timeout_us=1000,
    ready_timeout_us=1000,
    pressure_high=StoragePressure(64, 2**40, 10**9),
    pressure_low=StoragePressure(32, 2**39, 5 * 10**8),
)


def settings(storage: StorageSettings | None = LIMITS) -> SchedulerSettings:
    """A small scheduler with a host tier and a store."""
    return SchedulerSettings(
        page_size=PAGE,
        host_pages=128,
        storage=storage,
        groups=(CacheGroup("full", PAGE),),
    )


@define
class Driven:
    """A scheduler driven by hand: every cache operation is acknowledged in the next round."""

    driver: NativeScheduler = field(factory=lambda: NativeScheduler(settings()))
    now: int = 0
    acknowledged: list[CacheAcknowledgment] = field(factory=list)
    seen: list[StorageOperation] = field(factory=list)

    def submit(self, request_id: str, length: int, *, first: int = 1) -> None:
        """A request with tokens first, first + 1, ... and a budget of two."""
        ids = list(range(first, first + length))
        self.driver.submit([RequestSpec(request_id, ids, 2)])

    def round(self, *results: StorageResult, tick: StorageTick | None = None) -> Plan:
        """One round: the tick, a plan, and an answer to each row."""
        self.now += 1
        tick = evolve(tick or StorageTick(), results=results, now_us=self.now)
        done, self.acknowledged = self.acknowledged, []
        self.driver.advance_head(tick, done)
        plan = self.driver.plan()
        self.seen += plan.storage
        self.acknowledged = [CacheAcknowledgment(op.op_id, op.kind) for op in plan.operations]
        if plan.batch is not None:
            rows = range(len(plan.batch.request_ids))
            tokens = [-1 if plan.batch.is_mid_chunk(row) else 7 for row in rows]
            ends = [row for row in rows if row >= plan.batch.num_extends]
            self.driver.commit(plan.batch, CommitOutcome(tokens=tokens, finished=ends))
        self.driver.advance()
        return plan


def answer(operation: StorageOperation, success: Sequence[int]) -> StorageResult:
    """An operation's result with these keys found, landed or stored."""
    return StorageResult(operation.op_id, [bool(each) for each in success])


def asked(driven: Driven, tokens: int) -> StorageOperation:
    """The query of a new request."""
    driven.submit("a", tokens)
    (query,) = driven.round().storage
    return query


def test_a_new_request_asks_for_the_pages_of_its_prompt() -> None:
    """A query names each page by group and hash, in the order of the prompt."""
    query = asked(Driven(), 65)
    assert query.kind is StorageOperationKind.QUERY
    assert {(key.group, key.page_offset, len(key.content_hash)) for key in query.keys} == {
        ("full", 0, 64)
    }
    assert len({key.content_hash for key in query.keys}) == 4
    assert query.pages == ()


@pytest.mark.parametrize(
    ("exist", "landed", "prefix"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1), 64),
        ((1, 1, 0, 0), (1, 1), 32),
        ((1, 1, 1, 1), (1, 0, 1, 1), 16),
        ((0, 1, 1, 1), None, 0),
    ],
)
def test_leading_pages_that_landed_are_the_prefix(
    exist: Sequence[int], landed: Sequence[int] | None, prefix: int
) -> None:
    """A hole ends what a request wins, in the query as in the get."""
    driven = Driven()
    query = asked(driven, 65)
    assert driven.driver.storage_pending
    plan = driven.round(answer(query, exist))
    if landed is not None:
        (get,) = plan.storage
        assert (get.kind, len(get.pages)) == (StorageOperationKind.GET, len(get.keys))
        plan = driven.round(answer(get, landed))
    assert plan.batch is not None
    assert plan.batch.extend_prefix_lens == [prefix]
    assert not driven.driver.storage_pending


def test_a_detached_request_runs_without_the_store() -> None:
    """A detach ends the wait; the query is called off and still answers once."""
    driven = Driven()
    query = asked(driven, 65)
    plan = driven.round(tick=StorageTick(detached=("a",)))
    assert plan.batch is not None
    assert [(each.op_id, each.kind) for each in plan.storage] == [
        (query.op_id, StorageOperationKind.CANCEL)
    ]
    assert driven.driver.storage_pending
    driven.round(answer(query, (0,) * len(query.keys)))
    assert not driven.driver.storage_pending


@pytest.mark.parametrize("exist", [(0, 0, 0, 0), (1, 1, 1, 1), None])
def test_who_waits_for_a_store_runs_once_it_is_forbidden(exist: Sequence[int] | None) -> None:
    """Whether its answer comes with that round or not; while forwards are forbidden it stays."""
    driven = Driven()
    query = asked(driven, 65)
    frozen = driven.round(tick=StorageTick(allow_forward=False, allow_storage=False))
    assert (frozen.batch, frozen.storage) == (None, ())
    results = () if exist is None else (answer(query, exist),)
    plan = driven.round(*results, tick=StorageTick(allow_storage=False))
    assert plan.batch is not None
    assert plan.batch.extend_prefix_lens == [0]


def test_a_cancelled_request_never_runs() -> None:
    """A request that waits for the store ends at once, and its query is called off."""
    driven = Driven()
    asked(driven, 65)
    assert driven.driver.cancel("a")
    plan = driven.round()
    assert plan.batch is None
    assert [each.kind for each in plan.storage] == [StorageOperationKind.CANCEL]


def test_what_was_written_back_is_put() -> None:
    """Pages go to the store once the host tier has them, with the host pages they are in."""
    driven = Driven()
    query = asked(driven, 65)
    driven.round(answer(query, (0,) * len(query.keys)))
    for _ in range(6):
        driven.round()
    puts = [each for each in driven.seen if each.kind is StorageOperationKind.PUT]
    assert sum(len(each.keys) for each in puts) >= 4
    assert all(len(each.pages) == len(each.keys) for each in puts)
    assert driven.driver.storage_counts["operations"] == len(puts)


def test_nothing_is_put_while_pages_are_suspect() -> None:
    """After a NaN no page goes to the store until the cache was dropped."""
    driven = Driven()
    query = asked(driven, 65)
    plan = driven.round(answer(query, (0,) * len(query.keys)))
    driven.submit("b", 40, first=500)
    plan = driven.driver.plan()
    assert plan.batch is not None
    rows = range(len(plan.batch.request_ids))
    driven.acknowledged = [CacheAcknowledgment(op.op_id, op.kind) for op in plan.operations]
    driven.driver.commit(plan.batch, CommitOutcome(tokens=[-1 for _ in rows], aborted=list(rows)))
    driven.driver.advance()
    for _ in range(6):
        driven.round()
    assert [each for each in driven.seen if each.kind is StorageOperationKind.PUT] == []


def test_bad_limits_are_a_configuration_error() -> None:
    """Limits the scheduler refuses are told before anything is built."""
    with pytest.raises(ConfigError, match="StorageSettings"):
        NativeScheduler(settings(evolve(LIMITS, max_operations=0)))


def test_a_clock_that_goes_back_is_an_error() -> None:
    """The scheduler refuses a step back, and says so."""
    driven = Driven(now=5)
    driven.round()
    driven.now = 2
    with pytest.raises(EngineError, match="clock"):
        driven.round()

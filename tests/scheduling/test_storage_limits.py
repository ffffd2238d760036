# SPDX-License-Identifier: MIT
"""What bounds a store's part: how much is asked, for how long, under which pressure, and what a
store that does not let go of pages costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define, evolve, field

from tokenspeed_core.errors import EngineError
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
QUERY, GET, PUT = StorageOperationKind.QUERY, StorageOperationKind.GET, StorageOperationKind.PUT
CANCEL = StorageOperationKind.CANCEL
LIMITS = StorageSettings(
    max_operations=8,
    max_keys_per_operation=4,
    max_host_pages=64,
    metadata_entries=64,
    min_prefetch_tokens=32,
    max_prefetch_tokens=1024,
    wait_timeout_us=1000,
    ready_timeout_us=1000,
    pressure_high=StoragePressure(64, 2**40, 10**9),
    pressure_low=StoragePressure(32, 2**39, 5 * 10**8),
)


@define
class Driven:
    """A scheduler and a store, by hand: cache operations are acknowledged in the next round, and
    `has` says which of an operation's keys the store answers for; None: it does not answer."""

    has: dict[StorageOperationKind, bool | None] = field(
        factory=lambda: {QUERY: False, GET: True, PUT: True}
    )
    driver: NativeScheduler = field(init=False)
    now: int = 0
    operations: list[StorageOperation] = field(factory=list)
    _acknowledged: list[CacheAcknowledgment] = field(factory=list)
    _results: list[StorageResult] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        settings = SchedulerSettings(
            page_size=PAGE, host_pages=128, storage=LIMITS, groups=(CacheGroup("full", PAGE),)
        )
        self.driver = NativeScheduler(settings)

    def submit(self, name: str, length: int, *, first: int = 1) -> None:
        """A request with tokens first, first + 1, ... and a budget of two."""
        self.driver.submit([RequestSpec(name, list(range(first, first + length)), 2)])

    def round(self, tick: StorageTick | None = None, *results: StorageResult) -> Plan:
        """One round, with an answer to each row."""
        self.now += 1
        tick = evolve(tick or StorageTick(), results=(*self._results, *results), now_us=self.now)
        done, self._acknowledged, self._results = self._acknowledged, [], []
        self.driver.advance_head(tick, done)
        plan = self.driver.plan()
        self.operations += plan.storage
        for each in plan.storage:
            if (answer := self.has.get(each.kind)) is not None:
                self._results.append(StorageResult(each.op_id, [answer] * len(each.keys)))
        self._acknowledged = [CacheAcknowledgment(op.op_id, op.kind) for op in plan.operations]
        if plan.batch is not None:
            rows = range(len(plan.batch.request_ids))
            tokens = [-1 if plan.batch.is_mid_chunk(row) else 7 for row in rows]
            ends = [row for row in rows if row >= plan.batch.num_extends]
            self.driver.commit(plan.batch, CommitOutcome(tokens=tokens, finished=ends))
        self.driver.advance()
        return plan

    def rounds(self, count: int, tick: StorageTick | None = None) -> None:
        """So many rounds."""
        for _ in range(count):
            self.round(tick)

    def of(self, kind: StorageOperationKind) -> list[StorageOperation]:
        """The operations of this kind so far."""
        return [each for each in self.operations if each.kind is kind]


def test_less_than_is_worth_it_is_not_asked_for() -> None:
    """A prompt that can win fewer tokens than `min_prefetch_tokens` makes no query."""
    driven = Driven()
    driven.submit("short", 31)
    driven.submit("long", 33, first=500)
    driven.rounds(3)
    assert [len(each.keys) for each in driven.of(QUERY)] == [2]


def test_a_request_asks_once_from_its_start_and_no_further() -> None:
    """What one operation may name bounds what a request can win, however long its prompt."""
    driven = Driven(has={QUERY: True, GET: True, PUT: True})
    driven.submit("long", 10 * PAGE + 1)
    plans = [driven.round() for _ in range(4)]
    assert [len(each.keys) for each in driven.of(QUERY) + driven.of(GET)] == [4, 4]
    (batch,) = (plan.batch for plan in plans if plan.batch and plan.batch.num_extends)
    assert batch.extend_prefix_lens == [4 * PAGE]


def test_puts_are_split_by_what_an_operation_may_name() -> None:
    """All pages of a prompt are put, the partly filled last ones too, at most four at a time."""
    driven = Driven()
    driven.submit("long", 10 * PAGE + 5)
    driven.rounds(12)
    puts = driven.of(PUT)
    assert max(len(each.keys) for each in puts) == 4
    assert len({key.content_hash for each in puts for key in each.keys}) > 10


def test_who_waits_too_long_runs_without() -> None:
    """After `wait_timeout_us` the query is called off; until then the request counts as waiting."""
    driven = Driven(has={QUERY: None})
    driven.submit("a", 65)
    driven.rounds(5)
    assert (driven.driver.sizes.waiting, driven.of(CANCEL)) == (1, [])
    driven.now += LIMITS.wait_timeout_us
    plan = driven.round()
    assert [each.op_id for each in driven.of(CANCEL)] == [driven.of(QUERY)[0].op_id]
    assert plan.batch is not None
    assert plan.batch.extend_prefix_lens == [0]


def test_pages_that_landed_are_not_held_for_ever() -> None:
    """A request that may not run lets go of them after `ready_timeout_us`; they stay cached."""
    driven = Driven(has={QUERY: True, GET: True})
    driven.submit("a", 65)
    frozen = StorageTick(allow_forward=False)
    driven.rounds(4, frozen)
    counts = driven.driver.storage_counts
    assert (counts["ready_requests"], driven.driver.storage_pending) == (1, True)
    driven.now += LIMITS.ready_timeout_us
    driven.rounds(2, frozen)
    assert not driven.driver.storage_pending
    plan = driven.round()
    assert plan.batch is not None
    assert plan.batch.extend_prefix_lens == [64]


def test_without_leave_nothing_is_planned_for_the_store() -> None:
    """`allow_storage = False` plans no operation, of no kind; requests run."""
    driven = Driven()
    driven.submit("a", 65)
    driven.rounds(8, StorageTick(allow_storage=False))
    assert driven.operations == []
    assert driven.driver.sizes.waiting == 0


@pytest.mark.parametrize(
    ("pressures", "asked"),
    [((100, 40, 33), [0, 0, 0]), ((100, 32), [0, 1]), ((64,), [0]), ((63,), [1])],
)
def test_pressure_closes_the_store_until_it_is_low(
    pressures: Sequence[int], asked: Sequence[int]
) -> None:
    """From the high mark on new requests pass it by, and at the low one it is asked again."""
    driven, found = Driven(), []
    for number, pressure in enumerate(pressures):
        before = len(driven.of(QUERY))
        driven.submit(f"r{number}", 65, first=1000 * number + 1)
        driven.rounds(3, StorageTick(queued_operations=pressure))
        found.append(len(driven.of(QUERY)) - before)
    assert found == asked


def test_a_store_that_keeps_its_pages_is_written_to_no_more() -> None:
    """A put that did not let go is pending for good; requests go on, and nothing more is put."""
    driven = Driven(has={QUERY: False, PUT: None})
    driven.submit("a", 65)
    driven.rounds(6)
    held = driven.of(PUT)[0]
    lost = [False] * len(held.keys)
    driven.round(None, StorageResult(held.op_id, lost, is_retired=False))
    puts = len(driven.of(PUT))
    driven.submit("b", 65, first=500)
    driven.rounds(8)
    assert driven.driver.sizes.waiting == 0
    assert len(driven.of(PUT)) == puts
    assert driven.driver.storage_pending
    assert driven.driver.storage_counts["quarantined"] == 1


def test_a_bad_object_is_not_asked_for_again() -> None:
    """The page and what is behind it is computed, and known to be bad."""
    driven = Driven(has={QUERY: True, GET: None})
    driven.submit("a", 65)
    driven.rounds(2)
    (get,) = driven.of(GET)
    good = [True, False, False, False]
    bad = [False, True, False, False]
    plan = driven.round(None, StorageResult(get.op_id, good, failed=bad))
    assert plan.batch is not None
    assert plan.batch.extend_prefix_lens == [16]
    assert driven.driver.storage_counts["negative_keys"] == 1


def test_the_cache_is_not_cleared_under_an_open_operation() -> None:
    """A put that runs reads host pages, so a flush waits for it."""
    driven = Driven(has={QUERY: False, PUT: None})
    driven.submit("a", 65)
    driven.rounds(8)
    assert not driven.driver.can_clear_cache()
    stored = [StorageResult(each.op_id, [True] * len(each.keys)) for each in driven.of(PUT)]
    driven.round(None, *stored[:-1])
    assert not driven.driver.can_clear_cache()
    driven.round(None, stored[-1])
    assert driven.driver.can_clear_cache()


def test_an_answer_nobody_waits_for_is_left_alone_and_a_wrong_one_told() -> None:
    """An unknown id changes nothing; a result of another length is an error."""
    driven = Driven(has={QUERY: None})
    driven.submit("a", 65)
    driven.round(None, StorageResult(4711, [True]))
    (query,) = driven.of(QUERY)
    with pytest.raises(EngineError):
        driven.round(None, StorageResult(query.op_id, [True]))

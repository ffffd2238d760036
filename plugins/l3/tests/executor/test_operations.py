# SPDX-License-Identifier: MIT
"""Operations on the executor's threads: each answers once, whatever the store does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tokenspeed_hookspecs import StorageOperationKind
from tokenspeed_l3.errors import L3Error
from tokenspeed_l3.health import HealthState
from tokenspeed_l3.jobs import GET, PUT, QUERY
from tokenspeed_l3.keys import Part
from tokenspeed_l3.store import IoResult
from tokenspeed_l3.testing import ScriptedStore

PAGE_BYTES = 8
LIMIT_S = 20.0
LOG = logging.getLogger("tokenspeed.test")


MakeBench = Callable[..., Any]


def test_what_was_put_is_found_and_fetched(bench: MakeBench) -> None:
    """Bytes come back into other pages, and a key that nobody put is a miss."""
    here = bench()
    here.pages.page("full", 1)[:] = b"one-----"
    here.submit(1, PUT, 1)
    assert here.answered(1) == ([1], True)
    here.submit(2, QUERY, 1, 2)
    assert here.answered(2) == ([1, 0], True)
    here.pages.page("full", 1)[:] = bytes(8)
    here.submit(3, GET, 1, 2)
    assert here.answered(3) == ([1, 0], True)
    assert bytes(here.pages.page("full", 1)) == b"one-----"


def test_another_ranks_part_is_not_put_and_counts_as_done(bench: MakeBench) -> None:
    """Of ranks with equal bytes one puts; the others' answer holds nobody up."""
    here = bench()
    here.part = Part("full", PAGE_BYTES, is_owner=False)
    here.submit(1, PUT, 1, 2)
    assert here.answered(1) == ([1, 1], True)
    assert here.store.calls["put"] == 0
    here.submit(2, QUERY, 1)
    assert here.answered(2) == ([0], True)


@pytest.mark.parametrize("kind", [QUERY, GET, PUT])
@pytest.mark.parametrize("failures_retire", [True, False])
def test_an_error_is_misses(
    bench: MakeBench, kind: StorageOperationKind, failures_retire: bool
) -> None:
    """Pages are let go if the store is certain to touch them no more; a query touches none."""
    store = ScriptedStore(failures_retire=failures_retire, down={kind.value})
    here = bench(store)
    here.submit(1, kind, 1, 2)
    assert here.answered(1) == ([0, 0], failures_retire or kind is QUERY)


class Broken(BaseException):
    """What no store should raise."""


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), Broken(), SystemExit(1)])
def test_a_worker_survives_whatever_a_store_raises(bench: MakeBench, error: BaseException) -> None:
    """The operation is answered with misses, and the same worker takes the next one."""
    here = bench()

    def fail(call: str) -> None:
        raise error

    here.store.before = fail
    here.submit(1, PUT, 1)
    assert here.answered(1)[0] == [0]
    here.store.before = None
    here.submit(2, PUT, 1)
    assert here.answered(2)[0] == [1]


@pytest.mark.parametrize(
    "answer",
    [
        IoResult([True]),
        IoResult([True, True, True]),
        IoResult([True, True], [True]),
        IoResult([]),
    ],
)
@pytest.mark.parametrize("kind", [GET, PUT])
def test_an_answer_of_the_wrong_length_is_a_failure(
    bench: MakeBench, kind: StorageOperationKind, answer: IoResult
) -> None:
    """A store that loses count is not believed at all."""
    here = bench()
    here.store.answer = lambda call, num_keys: answer
    here.submit(1, kind, 1, 2)
    assert here.answered(1)[0] == [0, 0]
    assert here.executor.figures.failures[kind] == 1


def test_a_page_that_is_both_there_and_bad_is_bad(bench: MakeBench) -> None:
    """The scheduler refuses such an answer, so it never gets one."""
    here = bench()
    here.store.answer = lambda call, num_keys: IoResult([True, True], [False, True], False)
    here.submit(1, GET, 1, 2)
    assert here.answered(1) == ([1, 0], False)
    assert here.answers[1].failed == b"\0\1"


def test_a_put_that_failed_by_key_is_not_a_bad_object(bench: MakeBench) -> None:
    """The scheduler takes failures of gets only; what was not stored is simply not there."""
    here = bench()
    here.store.answer = lambda call, num_keys: IoResult([True, True], [False, True])
    here.submit(1, PUT, 1, 2)
    assert here.answered(1) == ([1, 0], True)
    assert here.answers[1].failed == b"\0\0"


def test_more_than_the_scheduler_may_have_open_is_a_fault(bench: MakeBench) -> None:
    """The bound is the scheduler's own, so passing it is an error of ours."""
    here = bench(ScriptedStore(shut={"get"}), max_operations=2)
    here.submit(1, GET, 1)
    here.called("get")
    here.submit(2, GET, 1)
    here.submit(3, GET, 1)
    with pytest.raises(L3Error, match="more than 2"):
        here.submit(4, GET, 1)
    here.submit(5, QUERY, 1)


@pytest.mark.parametrize("kind", [QUERY, GET])
def test_what_has_not_begun_is_cancelled_at_once(
    bench: MakeBench, kind: StorageOperationKind
) -> None:
    """It answers with misses and never reaches the store."""
    here = bench(ScriptedStore(shut={kind.value}))
    here.submit(1, kind, 1)
    here.called(kind.value)
    here.submit(2, kind, 1)
    here.executor.cancel(2)
    assert here.answered(2) == ([0], True)
    here.store.open()
    assert here.answered(1) == ([0], True)
    assert here.store.calls[kind.value] == 1


def test_a_running_query_is_dropped(bench: MakeBench) -> None:
    """It answers at once; what the store says later is nobody's."""
    here = bench(ScriptedStore(shut={"query"}))
    here.submit(1, QUERY, 1)
    here.called("query")
    here.executor.cancel(1)
    assert here.answered(1) == ([0], True)
    here.store.open()
    here.submit(2, QUERY, 1)
    here.answered(2)


def test_a_running_get_answers_when_the_store_returns(bench: MakeBench) -> None:
    """Until then it may write into the pages, so a cancel changes nothing."""
    here = bench(ScriptedStore(shut={"get"}))
    here.submit(1, GET, 1)
    here.called("get")
    here.executor.cancel(1)
    here.take()
    assert here.answers == {}
    here.store.open()
    here.answered(1)


def test_a_cancel_of_what_is_done_or_unknown_changes_nothing(bench: MakeBench) -> None:
    """It may cross the answer on its way."""
    here = bench()
    here.submit(1, QUERY, 1)
    here.answered(1)
    here.executor.cancel(1)
    here.executor.cancel(99)
    here.take()
    assert list(here.answers) == [1]


def test_pressure_is_what_has_not_begun_and_how_long_somebody_waits(bench: MakeBench) -> None:
    """Counts and bytes of the queues; the age also of a read that does not come back."""
    here = bench(ScriptedStore(shut={"get", "put"}))
    here.submit(1, GET, 1)
    here.submit(2, PUT, 1)
    here.called("get")
    here.called("put")
    here.now += 500
    here.submit(3, GET, 1, 2, 3)
    here.now += 500
    report = here.executor.report()
    told = (report.queued_operations, report.queued_bytes, report.oldest_operation_us)
    assert told == (1, 3 * PAGE_BYTES, 1000)


def test_a_store_that_fails_is_left_alone_and_tried_again(bench: MakeBench) -> None:
    """Closed, open, half-open with one on trial, open again, closed."""
    here = bench(failure_threshold=2, recovery_us=1_000_000)
    here.store.down = {"query"}
    for op_id in (1, 2):
        here.submit(op_id, QUERY, 1)
        here.answered(op_id)
    assert (here.executor.health, here.executor.report().is_available) == (
        HealthState.OPEN,
        False,
    )
    here.submit(3, QUERY, 1)
    assert here.answered(3) == ([0], True)
    assert here.store.calls["query"] == 2
    here.now += 1_000_000
    assert here.executor.report().is_available
    here.submit(4, QUERY, 1)
    here.answered(4)
    assert (here.executor.health, here.store.calls["query"]) == (HealthState.OPEN, 3)
    here.now += 1_000_000
    here.store.down, here.store.shut = set(), {"query"}
    here.submit(5, QUERY, 1)
    here.called("query", 4)
    here.submit(6, GET, 1)  # while one is on trial nothing else is asked
    assert here.answered(6) == ([0], True)
    assert here.store.calls["get"] == 0
    here.store.open()
    here.answered(5)
    assert here.executor.health is HealthState.CLOSED


def test_misses_and_damage_are_no_failures(bench: MakeBench) -> None:
    """They are answers, and one good answer forgets earlier failures."""
    here = bench(failure_threshold=2)
    here.store.damaged = {f"ns/{1:064x}_full_0_s0of1_p0of1"}
    for op_id in range(6):
        here.store.down = {"get"} if op_id % 2 else set()
        here.submit(op_id, GET, 1, 2)
        here.answered(op_id)
    assert here.executor.health is HealthState.CLOSED
    assert (here.executor.figures.damaged, here.executor.figures.failures[GET]) == (3, 3)


def test_a_namespace_is_not_removed_while_pages_move(bench: MakeBench) -> None:
    """A put that runs could bring an object back; a query does no harm."""
    here = bench(ScriptedStore({"ns/a": b"", "other/b": b""}, shut={"put", "query"}))
    here.submit(1, QUERY, 1)
    here.submit(2, PUT, 1)
    here.called("put")
    assert not here.executor.remove_namespace("ns/", limit_s=LIMIT_S)
    here.store.shut = {"query"}
    here.store.open()
    here.answered(2)
    assert here.executor.remove_namespace("ns/", limit_s=LIMIT_S)
    assert list(here.store.objects) == ["other/b"]


@pytest.mark.parametrize("trouble", ["down", "shut"])
def test_a_namespace_that_cannot_be_removed_is_said_so(bench: MakeBench, trouble: str) -> None:
    """An error and a store that does not come back: the loop goes on either way."""
    here = bench()
    setattr(here.store, trouble, {"remove"})
    assert not here.executor.remove_namespace("ns/", limit_s=0.05)


def test_stopping_drops_what_has_not_begun_and_closes_the_store(bench: MakeBench) -> None:
    """What runs may end; what is submitted afterwards is a miss."""
    here = bench(ScriptedStore(shut={"put"}))
    here.submit(1, PUT, 1)
    here.called("put")
    here.submit(2, PUT, 1)
    threading.Timer(0.05, here.store.open).start()
    assert here.executor.stop(limit_s=LIMIT_S)
    assert (here.store.is_closed, here.store.calls["put"]) == (True, 1)
    here.submit(3, PUT, 1)
    assert here.answered(3)[0] == [0]


def test_a_stuck_store_does_not_hold_up_the_end(
    bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine ends within the limit; the memory stays for as long as the call may use it."""
    here = bench(ScriptedStore(shut={"get"}))
    here.submit(1, GET, 1)
    here.called("get")
    assert not here.executor.stop(limit_s=0.05)
    assert "keeps the host pages" in caplog.text
    assert not here.store.is_closed
    here.store.open()
    here.until(lambda: here.store.is_closed)


def test_many_threads_answer_each_operation_once(bench: MakeBench) -> None:
    """Submits, cancels and a failing store, crossing each other."""
    store = ScriptedStore()
    here = bench(store, max_operations=1000, query_workers=3, read_workers=3, write_workers=3)
    store.before = lambda call: time.sleep(0.0002)
    for op_id in range(300):
        here.submit(op_id, (QUERY, GET, PUT)[op_id % 3], op_id % 50)
        if op_id % 5 == 0 and op_id % 3 < 2:
            here.executor.cancel(op_id)
        here.take()
    here.until(lambda: len(here.answers) == 300)
    assert here.executor.report().queued_bytes == 0

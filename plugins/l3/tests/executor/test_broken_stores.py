# SPDX-License-Identifier: MIT
"""Stores that break what nobody should break: each operation is answered all the same."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define

from tokenspeed_hookspecs import StorageKey, StorageOperation, StorageOperationKind
from tokenspeed_l3.executor import Executor, ExecutorSettings
from tokenspeed_l3.health import HealthState
from tokenspeed_l3.jobs import GET, PUT, QUERY, Job, Site
from tokenspeed_l3.keys import Part
from tokenspeed_l3.store import IoResult
from tokenspeed_l3.testing import ScriptedStore

LIMIT_S = 20.0
LOG = logging.getLogger("tokenspeed.test")


MakeBench = Callable[..., Any]


class Panic(BaseException):
    """What no store should raise; a panic in a store written in Rust comes as one, too."""


class UnspeakableError(Exception):
    """An error that does not say what it is."""

    def __str__(self) -> str:
        raise Panic


def raising(error: BaseException) -> Callable[[str], None]:
    """A script that raises in each call."""

    def fail(call: str) -> None:
        raise error

    return fail


def test_a_worker_survives_an_error_that_cannot_be_told(bench: MakeBench) -> None:
    """The log has the error's kind, and the same worker takes the next operation."""
    here = bench()
    here.store.before = raising(UnspeakableError())
    here.submit(1, QUERY, 1)
    assert here.answered(1)[0] == [0]
    here.store.before = None
    here.submit(2, PUT, 1)
    assert here.answered(2)[0] == [1]
    here.submit(3, QUERY, 1)
    assert here.answered(3)[0] == [1]


def test_a_store_that_does_not_say_whether_failures_retire_keeps_the_pages(
    bench: MakeBench,
) -> None:
    """The operation is answered, whatever the question raises."""

    class Silent(ScriptedStore):
        @property
        def failures_retire(self) -> bool:
            raise Panic

        @failures_retire.setter
        def failures_retire(self, value: bool) -> None: ...

    here = bench(Silent(down={"get"}))
    here.submit(1, GET, 1)
    assert here.answered(1) == ([0], False)
    here.submit(2, GET, 1)
    assert here.answered(2) == ([0], False)


@pytest.mark.parametrize("kind", [GET, PUT])
def test_pages_are_kept_where_a_wrong_answer_says_they_are_in_use(
    bench: MakeBench, kind: StorageOperationKind
) -> None:
    """Of an answer that is not believed this is: else the pages were given out while in use."""
    here = bench(ScriptedStore(answer=lambda call, num_keys: IoResult([True], is_retired=False)))
    here.submit(1, kind, 1, 2)
    assert here.answered(1) == ([0, 0], False)
    assert here.executor.figures.failures[kind] == 1


def test_a_panic_while_a_namespace_is_removed_is_a_removal_that_failed(
    bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told as any other error."""
    here = bench(ScriptedStore(before=raising(Panic("in Rust"))))
    assert not here.executor.remove_namespace("ns/", limit_s=LIMIT_S)
    assert "namespace ns/ was not removed: Panic: in Rust" in caplog.text
    here.store.before = None


def test_a_panic_while_closing_ends_the_executor(
    bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told as any other error."""
    here = bench(ScriptedStore(before=raising(Panic("in Rust"))))
    assert here.executor.stop(limit_s=LIMIT_S)
    assert "the store failed to close" in caplog.text
    here.store.before = None


@define(eq=False, slots=False)
class Memory:
    """What a store may touch, as something that a test sees the end of."""


def test_the_memory_outlives_a_call_that_does_not_come_back(bench: MakeBench) -> None:
    """Whoever else let go of it: it stays until the store does, and then goes."""
    store, memory = ScriptedStore(shut={"query"}), Memory()
    kept = weakref.ref(memory)
    executor = Executor(store, ExecutorSettings(query_workers=1), memory=memory, log=LOG)
    executor.start()
    site = Site({"full": Part("full", 8)}, bench().pages)
    key = StorageKey("full", "0" * 64, 0)
    executor.submit(Job(StorageOperation(1, QUERY, [key]), "ns", site, 0))
    end = time.monotonic() + LIMIT_S
    while not store.calls["query"]:
        assert time.monotonic() < end
    assert not executor.stop(limit_s=0.01)
    del executor, memory
    gc.collect()
    assert kept() is not None
    store.open()
    while kept() is not None:
        assert time.monotonic() < end
        time.sleep(0.01)
        gc.collect()
    assert store.is_closed


def test_after_the_recovery_interval_one_operation_of_many_is_on_trial(bench: MakeBench) -> None:
    """The others that came meanwhile are answered with misses, whichever worker they fall to."""
    here = bench(read_workers=4, failure_threshold=1, recovery_us=1_000)
    here.store.down = {"get"}
    here.submit(1, GET, 1)
    here.answered(1)
    here.until(lambda: here.executor.health is HealthState.OPEN)
    here.now += 1_000
    here.store.down, here.store.shut = set(), {"get"}
    for op_id in range(2, 10):
        here.submit(op_id, GET, 1)
    here.until(lambda: len(here.answers) == 8 and here.executor.health is HealthState.HALF_OPEN)
    assert here.store.calls["get"] == 2
    here.store.open()
    here.until(lambda: len(here.answers) == 9)
    here.until(lambda: here.executor.health is HealthState.CLOSED)


def test_what_is_queued_when_a_store_is_given_up_is_answered(bench: MakeBench) -> None:
    """With misses, and without asking it again."""
    here = bench(ScriptedStore(down={"get"}, shut={"get"}), failure_threshold=1)
    for op_id in range(5):
        here.submit(op_id, GET, 1, 2)
    here.until(lambda: here.store.calls["get"])
    here.store.open()
    here.until(lambda: len(here.answers) == 5)
    assert {bytes(each.success) for each in here.answers.values()} == {b"\0\0"}
    assert (here.store.calls["get"], here.executor.report().queued_bytes) == (1, 0)


def test_a_cancelled_query_on_trial_still_decides(bench: MakeBench) -> None:
    """Its answer is nobody's, but the store is known to be back."""
    here = bench(failure_threshold=1, recovery_us=1_000)
    here.store.down = {"query"}
    here.submit(1, QUERY, 1)
    here.answered(1)
    here.now += 1_000
    here.store.down, here.store.shut = set(), {"query"}
    here.submit(2, QUERY, 1)
    here.until(lambda: here.store.calls["query"] == 2)
    here.executor.cancel(2)
    assert here.answered(2) == ([0], True)
    here.store.open()
    here.until(lambda: here.executor.health is HealthState.CLOSED)

# SPDX-License-Identifier: MIT
"""A store that is opened by the first call that can."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from attrs import define, field

from tokenspeed_l3.late_store import LateStore
from tokenspeed_l3.store import Store, StoreError
from tokenspeed_l3.testing import ScriptedStore

LIMIT_S = 20.0


@define(eq=False)
class Door:
    """Opens a store once it is there, and not before `goes_on`."""

    store: ScriptedStore = field(factory=ScriptedStore)
    is_there: bool = True
    asked: int = 0
    is_asked: threading.Event = field(factory=threading.Event)
    goes_on: threading.Event = field(factory=threading.Event)

    def open(self) -> Store:
        self.asked += 1
        self.is_asked.set()
        assert self.goes_on.wait(LIMIT_S)
        if not self.is_there:
            raise StoreError("nobody there")
        return self.store


def test_each_call_tries_until_one_can() -> None:
    """Meanwhile every call is an error, pages are let go, and nothing is counted."""
    door = Door(is_there=False)
    door.goes_on.set()
    late = LateStore(door.open)
    for call in (late.batch_exists, late.remove_by_prefix):
        with pytest.raises(StoreError, match="nobody there"):
            call("ab")
    assert (door.asked, late.failures_retire, late.counts()) == (2, True, {})
    door.is_there, door.store.failures_retire = True, False
    assert late.batch_exists(["a"]) == [False]
    assert late.batch_exists(["a"]) == [False]
    assert (door.asked, late.failures_retire) == (3, False)


def test_of_many_calls_at_once_one_opens_it() -> None:
    """The others wait for it, and use the same store."""
    door = Door()
    late = LateStore(door.open)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(late.batch_exists, ["a"]) for _ in range(4)]
        assert door.is_asked.wait(LIMIT_S)
        door.goes_on.set()
        assert [each.result(LIMIT_S) for each in calls] == [[False]] * 4
    assert (door.asked, door.store.calls["query"]) == (1, 4)


def test_a_store_that_opens_while_the_end_comes_is_closed() -> None:
    """Nothing is left open, and nothing is opened afterwards."""
    door = Door()
    late = LateStore(door.open)
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(late.batch_exists, ["a"])
        assert door.is_asked.wait(LIMIT_S)
        end = pool.submit(late.close)
        door.goes_on.set()
        call.result(LIMIT_S)
        end.result(LIMIT_S)
    assert door.store.is_closed
    unopened = LateStore(door.open)
    unopened.close()
    with pytest.raises(StoreError, match="was closed before"):
        unopened.batch_exists(["a"])
    assert door.asked == 1

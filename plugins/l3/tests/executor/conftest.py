# SPDX-License-Identifier: MIT
"""An executor with a store and pages, and a test that collects what it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from attrs import define, field

from tokenspeed_hookspecs import HostGroup, StorageKey, StorageOperation, StorageOperationKind
from tokenspeed_l3.executor import Executor, ExecutorSettings
from tokenspeed_l3.jobs import QUERY, Job, Site
from tokenspeed_l3.keys import Part
from tokenspeed_l3.report import Completion
from tokenspeed_l3.testing import ScriptedStore

PAGE_BYTES = 8
LIMIT_S = 20.0
LOG = logging.getLogger("tokenspeed.test")


@define(eq=False)
class Pages:
    """Host pages of one group."""

    memory: bytearray = field(factory=lambda: bytearray(PAGE_BYTES * 64))

    @property
    def groups(self) -> Sequence[HostGroup]:
        return [HostGroup("full", PAGE_BYTES, ("cells",))]

    @property
    def num_pages(self) -> int:
        return 64

    @property
    def buffers(self) -> Sequence[memoryview]:
        return [memoryview(self.memory)]

    def page(self, group: str, page: int) -> memoryview:
        return memoryview(self.memory)[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]

    def identity(self) -> Mapping[str, object]:
        return {}


@define(eq=False)
class Bench:
    """An executor, its store and pages, and a clock that the test holds."""

    store: ScriptedStore
    settings: ExecutorSettings
    pages: Pages = field(factory=Pages)
    now: int = 1_000
    part: Part = field(factory=lambda: Part("full", PAGE_BYTES))
    answers: dict[int, Completion] = field(factory=dict)
    executor: Executor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.executor = Executor(
            self.store, self.settings, memory=self.pages, log=LOG, now_us=lambda: self.now
        )
        self.executor.start()

    def submit(self, op_id: int, kind: StorageOperationKind, *pages: int) -> None:
        """Submit an operation on these pages; a page's number is its key, too."""
        keys = [StorageKey("full", f"{page:064x}", 0) for page in pages]
        operation = StorageOperation(op_id, kind, keys, () if kind is QUERY else pages)
        site = Site({"full": self.part}, self.pages)
        self.executor.submit(Job(operation, "ns", site, self.now))

    def take(self) -> None:
        """Collect what ended; an operation that answers twice is an AssertionError."""
        for each in self.executor.report().completions:
            assert each.op_id not in self.answers, f"operation {each.op_id} answered twice"
            self.answers[each.op_id] = each

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, collecting answers."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"still waiting; answers are {self.answers}"
            self.take()
            time.sleep(0.001)

    def answered(self, op_id: int) -> tuple[list[int], bool]:
        """Wait for an operation's answer: success, and whether its pages are free."""
        self.until(lambda: op_id in self.answers)
        found = self.answers[op_id]
        return [*found.success], found.is_retired

    def called(self, call: str, times: int = 1) -> None:
        """Wait until the store was called so often."""
        self.until(lambda: self.store.calls[call] >= times)


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[MakeBench]:
    """Makes benches, with one worker a kind; all are stopped."""
    made: list[Bench] = []

    def make(store: ScriptedStore | None = None, **settings: int) -> Bench:
        chosen = {"query_workers": 1, "read_workers": 1, "write_workers": 1, **settings}
        made.append(Bench(store or ScriptedStore(), ExecutorSettings(**chosen)))
        return made[-1]

    yield make
    for each in made:
        each.store.open()
        assert each.executor.stop(limit_s=LIMIT_S)

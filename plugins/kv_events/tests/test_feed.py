# SPDX-License-Identifier: MIT
"""Between the loop and the publisher: what is lost and told, and what a failure may not touch."""

from __future__ import annotations

import logging
import threading
from time import perf_counter

import pytest
from attrs import define, field, frozen

from tokenspeed_core.composition.instruments import NoInstruments
from tokenspeed_kv_events.events import Encoder
from tokenspeed_kv_events.feed import TOLERATED, Feed, Worker
from tokenspeed_kv_events.publishers import Batch
from tokenspeed_kv_events.translation import Translation

LOG = logging.getLogger("tokenspeed.kv_events.test")
WAIT_S = 60.0


@frozen
class Removed:
    """A removal, as the scheduler tells it."""

    block_hashes: list[int]
    kind: str = "BlockRemoved"


@define
class Publisher:
    """Keeps batches once its gate is open; raises what it is told to."""

    gate: threading.Event = field(factory=threading.Event)
    batches: list[Batch] = field(factory=list)
    error: Exception | None = None
    asked: int = 0
    is_closed: bool = False

    def publish(self, batch: Batch) -> None:
        assert self.gate.wait(WAIT_S)
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def attend(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


@define
class Total:
    """A counter."""

    value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


def feed_to(publisher: Publisher, *, max_size: int = 1000) -> tuple[Feed, Total]:
    """A started feed, and the counter of what it loses."""
    worker = Worker(
        publisher,
        Translation(),
        encoder=Encoder("array", 0),
        log=LOG,
        instruments=NoInstruments(),
    )
    lost = Total()
    feed = Feed(worker, max_size=max_size, lost=lost)
    feed.start()
    return feed, lost


def test_a_full_queue_loses_batches_and_not_their_numbers() -> None:
    """Readers see a gap as wide as what was lost, and what comes behind it."""
    publisher = Publisher()
    feed, lost = feed_to(publisher, max_size=5)
    for number in range(100):
        feed.put([Removed([number])])
    publisher.gate.set()
    while len(publisher.batches) < 5:
        threading.Event().wait(0.001)
    feed.put([Removed([100])])
    feed.stop()
    numbers = [batch.sequence for batch in publisher.batches]
    assert lost.value >= 94
    assert numbers[-1] == 101
    assert numbers[-1] - len(numbers) + 1 == lost.value


def test_a_publisher_that_waits_holds_up_nobody() -> None:
    """A million events with nobody to take them: no round waits, and the queue stays as it is."""
    publisher = Publisher()
    feed, lost = feed_to(publisher, max_size=100)
    natives = [Removed([number]) for number in range(100)]
    slowest = 0.0
    for _ in range(10_000):
        begin = perf_counter()
        feed.put(natives)
        slowest = max(slowest, perf_counter() - begin)
    assert lost.value >= 9_899
    assert slowest < 10.0
    publisher.gate.set()
    feed.stop()


def test_a_batch_of_nothing_to_tell_has_no_number() -> None:
    """A round that stored only a block that is not full leaves no gap."""

    @frozen
    class Tail:
        block_hashes: list[int]
        kind: str = "BlockStored"
        parent_block_hash: int | None = None
        token_ids: tuple[int, ...] = (1,)
        block_size: int = 4

    publisher = Publisher()
    publisher.gate.set()
    feed, _ = feed_to(publisher)
    feed.put([Tail([3])])
    feed.put([Removed([3])])
    feed.put([Removed([4])])
    feed.stop()
    assert [batch.sequence for batch in publisher.batches] == [0, 1]


def test_a_publisher_that_keeps_failing_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its failures are told twice: the first, and that it is not asked again."""
    monkeypatch.setattr("tokenspeed_kv_events.feed.BACK_OFF_S", 0)
    publisher = Publisher(error=OSError("no route"))
    publisher.gate.set()
    feed, _ = feed_to(publisher)
    for number in range(3 * TOLERATED):
        feed.put([Removed([number])])
    feed.stop()
    assert (publisher.is_closed, publisher.asked) == (True, TOLERATED)
    assert [line for line in caplog.messages if "publishing kv events" in line] == [
        "publishing kv events failed",
        "publishing kv events failed too often and is switched off",
    ]


def test_one_failure_loses_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """The batches after it are published under their own numbers."""
    publisher = Publisher(error=OSError("no route"))
    publisher.gate.set()
    feed, _ = feed_to(publisher)
    while not publisher.asked:
        threading.Event().wait(0.001)
    publisher.error = None
    feed.put([Removed([1])])
    feed.stop()
    assert [batch.sequence for batch in publisher.batches] == [1]
    assert publisher.is_closed

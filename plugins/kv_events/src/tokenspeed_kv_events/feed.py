# SPDX-License-Identifier: MIT
"""From the loop to a publisher: the loop leaves batches in a queue, and a thread does the rest.

The loop never waits: with the queue full a batch is lost. Its sequence number is used up with it,
so that readers see that something is missing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import sleep, time

from attrs import frozen

from tokenspeed_hookspecs import CacheCleared, Counter, Instruments
from tokenspeed_kv_events.events import Encoder
from tokenspeed_kv_events.publishers import Batch, Publisher
from tokenspeed_kv_events.translation import Translation

# The thread looks by itself now and then: to be woken for a batch would cost the loop a call into
# the system, and often its place on the processor.
IDLE_S = 0.01
BACK_OFF_S = 0.1
TOLERATED = 10  # failures in a row
STOP_S = 1.0
KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


@frozen
class Drained:
    """A round's events of the scheduler; how many rounds before it were lost; the wall clock."""

    natives: Sequence[object]
    num_lost: int
    time_s: float


class Feed:
    """The loop's end: `put` costs a microsecond, whatever is in a batch."""

    def __init__(self, worker: Worker, *, max_size: int, lost: Counter) -> None:
        self._queue: SimpleQueue[Drained | None] = SimpleQueue()
        self._max_size, self._lost = max_size, lost
        self._num_lost = 0
        self._thread = threading.Thread(
            target=worker.run, args=(self._queue,), name="kv-events", daemon=True
        )

    def start(self) -> None:
        """Start the thread; the first event tells readers to forget an engine of before."""
        self._thread.start()
        self.put([CacheCleared()])

    def put(self, natives: Sequence[object]) -> None:
        """Leave a round's events for the thread, or lose them."""
        if self._queue.qsize() >= self._max_size:
            self._num_lost += 1
            self._lost.add()
            return
        self._queue.put(Drained(natives, self._num_lost, time()))
        self._num_lost = 0

    def stop(self) -> None:
        """Let the thread publish what is left, for a moment, and end."""
        self._queue.put(None)
        self._thread.join(STOP_S)


class Worker:
    """The thread's end: makes batches of what was drained, and gives them to the publisher."""

    def __init__(
        self,
        publisher: Publisher,
        translation: Translation,
        *,
        encoder: Encoder,
        log: logging.Logger,
        instruments: Instruments,
    ) -> None:
        self._publisher, self._translation = publisher, translation
        self._encoder, self._log = encoder, log
        self._batches = instruments.counter("kv_event_batches", "Batches that were published.")
        self._events = {
            kind: instruments.counter("kv_events", "Events published.", labels={"kind": kind})
            for kind in KINDS
        }
        self._sequence = 0
        self._failures = 0

    def run(self, queue: SimpleQueue[Drained | None]) -> None:
        """Publish until None comes, and close the publisher."""
        while True:
            try:
                drained = queue.get_nowait()
            except Empty:
                if not self._guarded(self._publisher.attend):
                    sleep(IDLE_S)
                continue
            if drained is None:
                break
            self._guarded(partial(self._take, drained))
            self._guarded(self._publisher.attend)
        self._publisher.close()

    def _take(self, drained: Drained) -> None:
        if drained.num_lost:
            self._sequence += drained.num_lost
            self._translation.forget()
        events = self._translation.events(drained.natives)
        if not events:
            return
        payload = self._encoder.payload(drained.time_s, events)
        batch = Batch(self._sequence, events, payload)
        self._sequence += 1
        self._publisher.publish(batch)
        self._failures = 0
        self._batches.add()
        for kind, count in Counts(map(type, events)).items():
            self._events[kind.__name__].add(count)

    def _guarded(self, call: Callable[[], object]) -> bool:
        """Do something that may fail; after too many failures in a row nothing is done any more."""
        if self._failures >= TOLERATED:
            return False
        try:
            answer = bool(call())
        except Exception:
            self._failures += 1
            if self._failures == 1:
                self._log.exception("publishing kv events failed")
            if self._failures == TOLERATED:
                self._log.error("publishing kv events failed too often and is switched off")
            sleep(BACK_OFF_S)
            return False
        return answer

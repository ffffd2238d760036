# SPDX-License-Identifier: MIT
"""The executor's and the scheduler's figures as instruments; all on the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenspeed_hookspecs import Counter, FinishedRequest, Instruments
from tokenspeed_l3.executor import Executor
from tokenspeed_l3.figures import Figures
from tokenspeed_l3.jobs import GET, PUT, QUERY

KINDS = (QUERY, GET, PUT)
DEVICE, HOST, STORAGE = "device", "host", "storage"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOTALS: Mapping[str, str] = {
    "operations": "Storage operations that the store answered or failed.",
    "failures": "Storage operations that the store failed.",
    "hits": "Keys that were found, fetched or stored.",
    "misses": "Keys that were not.",
    "num_bytes": "Bytes fetched or stored.",
}


class Telling:
    """Tells what changed since it told last."""

    def __init__(
        self, instruments: Instruments, executor: Executor, *, of_scheduler: Mapping[str, int]
    ) -> None:
        self._executor, self._instruments = executor, instruments
        self._told: dict[Any, float] = {}
        self._totals = {
            (name, kind): instruments.counter(
                "l3_bytes" if name == "num_bytes" else f"l3_{name}",
                meaning,
                labels={"kind": kind.value},
            )
            for name, meaning in TOTALS.items()
            for kind in KINDS
        }
        self._refused = instruments.counter(
            "l3_refused_operations", "Storage operations not asked because the store had failed."
        )
        self._damaged = instruments.counter("l3_damaged_objects", "Objects that were bad.")
        self._cached = {
            tier: instruments.counter(
                "l3_cached_tokens",
                "Cached prompt tokens of requests that ended, by where they were.",
                labels={"tier": tier},
            )
            for tier in (DEVICE, HOST, STORAGE)
        }
        self._of_store: dict[str, Counter] = {}
        self._seconds = {
            kind: instruments.histogram(
                "l3_operation_seconds",
                "How long the store took.",
                buckets=SECONDS,
                labels={"kind": kind.value},
            )
            for kind in KINDS
        }
        self._health = instruments.gauge(
            "l3_health", "0: the store is asked; 1: on trial; 2: left alone after failures."
        )
        self._queued = {
            kind: instruments.gauge(
                "l3_queued_operations",
                "Storage operations not begun.",
                labels={"kind": kind.value},
            )
            for kind in KINDS
        }
        self._scheduler = {
            name: instruments.gauge(
                "l3_scheduler", "The scheduler's figures of storage.", labels={"figure": name}
            )
            for name in of_scheduler
        }

    def finished(self, request: FinishedRequest) -> None:
        """Count a request that ended."""
        tiers = request.cached_by_tier or {DEVICE: request.cached_tokens}
        for tier, counter in self._cached.items():
            counter.add(tiers.get(tier, 0))

    def tell(self, of_scheduler: Mapping[str, int]) -> None:
        """Bring the instruments up to date."""
        figures = self._executor.figures
        for (name, kind), counter in self._totals.items():
            self._add(counter, (name, kind), total=getattr(figures, name)[kind])
        self._add(self._refused, "refused", total=figures.refused)
        self._add(self._damaged, "damaged", total=figures.damaged)
        for name, total in self._executor.store_counts.items():
            self._add(self._store_counter(name), ("store", name), total=total)
        self._observe(figures)
        self._health.set(self._executor.health.value)
        for kind, count in self._executor.num_queued.items():
            self._queued[kind].set(count)
        for name, value in of_scheduler.items():
            self._scheduler[name].set(value)

    def _store_counter(self, name: str) -> Counter:
        """Which there are is known only once the store is open."""
        if name not in self._of_store:
            self._of_store[name] = self._instruments.counter(
                "l3_store", "What the store itself counts.", labels={"figure": name}
            )
        return self._of_store[name]

    def _observe(self, figures: Figures) -> None:
        while figures.seconds:
            kind, seconds = figures.seconds.popleft()
            self._seconds[kind].observe(seconds)

    def _add(self, counter: Counter, key: object, *, total: float) -> None:
        counter.add(total - self._told.get(key, 0))
        self._told[key] = total

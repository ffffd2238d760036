# SPDX-License-Identifier: MIT
"""The executor's and the scheduler's figures as instruments; all on the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenspeed_hookspecs import Counter, Instruments
from tokenspeed_l3.executor import Executor
from tokenspeed_l3.figures import Figures
from tokenspeed_l3.jobs import GET, PUT, QUERY

KINDS = (QUERY, GET, PUT)
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
        self._executor = executor
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
        self.tokens = instruments.counter(
            "l3_fetched_tokens", "Cached prompt tokens that came from the store."
        )
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

    def tell(self, of_scheduler: Mapping[str, int]) -> None:
        """Bring the instruments up to date."""
        figures = self._executor.figures
        for (name, kind), counter in self._totals.items():
            self._add(counter, (name, kind), total=getattr(figures, name)[kind])
        self._add(self._refused, "refused", total=figures.refused)
        self._add(self._damaged, "damaged", total=figures.damaged)
        self._observe(figures)
        self._health.set(self._executor.health.value)
        for kind, count in self._executor.num_queued.items():
            self._queued[kind].set(count)
        for name, value in of_scheduler.items():
            self._scheduler[name].set(value)

    def _observe(self, figures: Figures) -> None:
        while figures.seconds:
            kind, seconds = figures.seconds.popleft()
            self._seconds[kind].observe(seconds)

    def _add(self, counter: Counter, key: object, *, total: float) -> None:
        counter.add(total - self._told.get(key, 0))
        self._told[key] = total

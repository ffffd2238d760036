# SPDX-License-Identifier: MIT
"""Counters, gauges and histograms as plain numbers: one thread writes, others read, nobody locks.

A reader may see a histogram's counts a moment before its sum; each number by itself is whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

Complain = Callable[[object], None]


class Counter:
    """A number that only grows."""

    __slots__ = ("_complain", "value")

    def __init__(self, complain: Complain) -> None:
        self.value = 0.0
        self._complain = complain

    def add(self, amount: float = 1) -> None:
        """Add an amount; one that is no number or below zero is told and left out."""
        try:
            if amount >= 0:
                self.value += amount
                return
        except TypeError:
            pass
        self._complain(amount)


class Gauge:
    """A number as it is now."""

    __slots__ = ("_complain", "value")

    def __init__(self, complain: Complain) -> None:
        self.value = 0.0
        self._complain = complain

    def set(self, value: float) -> None:
        """Replace the value; what is no number is told and left out."""
        try:
            self.value = value + 0.0
        except TypeError:
            self._complain(value)


class Histogram:
    """How often values up to each bound, and above the last one, were seen."""

    __slots__ = ("_complain", "bounds", "counts", "total")

    def __init__(self, complain: Complain, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self._complain = complain

    def observe(self, value: float, count: int = 1) -> None:
        """Take a value, seen so many times; what is no number is told and left out."""
        try:
            if value == value and count >= 0:  # NaN equals nothing
                self.counts[bisect_left(self.bounds, value)] += count
                self.total += value * count
                return
        except TypeError:
            pass
        self._complain(value)

    def up_to(self, bounds: Sequence[float]) -> list[int]:
        """How many values were at most each of these bounds, which are among its own; then all."""
        sums = list(accumulate(self.counts))
        places = {bound: place for place, bound in enumerate(self.bounds)}
        return [*(sums[places[bound]] for bound in bounds), sums[-1]]


Series = Counter | Gauge | Histogram

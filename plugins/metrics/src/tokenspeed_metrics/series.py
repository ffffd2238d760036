# SPDX-License-Identifier: MIT
"""Counters, gauges and histograms as plain numbers: one thread writes, others read.

A histogram's writer leaves values in a queue, and whoever reads sorts them in: writing is a call
into C and waits for nobody. A reader may see a histogram's counts a moment before its sum; each
number by itself is whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

Complain = Callable[[object], None]
MOST_WAITING = 1 << 16  # values; with nobody who reads, the oldest go


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
    """How often values up to each bound, and above the last one, were seen.

    `observe(value)` takes one. `settle` sorts in what was taken; one thread at a time calls it.
    """

    __slots__ = ("_complain", "_equal", "_waiting", "bounds", "counts", "observe", "total")

    def __init__(self, complain: Complain, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self._complain = complain
        self._waiting: deque[float] = deque(maxlen=MOST_WAITING)
        self._equal: deque[tuple[float, int]] = deque(maxlen=MOST_WAITING)
        self.observe: Callable[[float], None] = self._waiting.append

    def observe_equal(self, value: float, count: int) -> None:
        """Take a value that was seen so many times."""
        self._equal.append((value, count))

    def settle(self) -> None:
        """Sort in what waits; what is no number is told and left out."""
        if self._waiting:
            take = self._waiting.popleft
            self._sort_in([take() for _ in range(len(self._waiting))])
        for _ in range(len(self._equal)):
            value, count = self._equal.popleft()
            self.counts[bisect_left(self.bounds, value)] += count
            self.total += value * count

    def up_to(self, bounds: Sequence[float]) -> list[int]:
        """How many values were at most each of these bounds, which are among its own; then all."""
        sums = list(accumulate(self.counts))
        places = {bound: place for place, bound in enumerate(self.bounds)}
        return [*(sums[places[bound]] for bound in bounds), sums[-1]]

    def _sort_in(self, values: Sequence[float]) -> None:
        """All at once, or one by one where some are no numbers."""
        try:
            total, places = sum(values), Counts(map(partial(bisect_left, self.bounds), values))
        except (TypeError, ValueError):
            total = float("nan")
        if total == total:  # NaN equals nothing
            for place, count in places.items():
                self.counts[place] += count
            self.total += total
        elif len(values) > 1:
            for value in values:
                self._sort_in([value])
        else:
            self._complain(values[0])


Series = Counter | Gauge | Histogram

# SPDX-License-Identifier: MIT
"""Numbers that a rank tells whoever watches it; without a watcher each call does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import define


class Counter(Protocol):
    """A number that only grows, from 0 at the start."""

    def add(self, amount: float = 1) -> None:
        """Add an amount that is not negative."""
        ...


class Gauge(Protocol):
    """A number as it is now."""

    def set(self, value: float) -> None:
        """Replace the value."""
        ...


class Histogram(Protocol):
    """How often values of each size were seen."""

    def observe(self, value: float) -> None:
        """Take a value."""
        ...


class Instruments(Protocol):
    """Makes the series a rank records into. Ask once a series, in `start`, and keep it: recording
    then costs well under a microsecond, waits for nobody and never raises.

    A name is lower-case words joined by `_`, the plugin's own first, the unit last (`_seconds`,
    `_bytes`), without a prefix or `_total`; `meaning` is a sentence. Series of one name differ in
    their labels' values, which come from a list known at the start, never from requests. One thread
    records into a series. The same name and labels again give the same series; ValueError where a
    name was used before with another kind, other buckets or other label names.
    """

    def counter(
        self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None
    ) -> Counter:
        """The counter of this name and these labels."""
        ...

    def gauge(self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None) -> Gauge:
        """The gauge of this name and these labels."""
        ...

    def histogram(
        self,
        name: str,
        meaning: str,
        *,
        buckets: Sequence[float],
        labels: Mapping[str, str] | None = None,
    ) -> Histogram:
        """The histogram of this name and these labels; `buckets` are upper bounds, ascending."""
        ...

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Have `settle` called before the series are read, and now and then: by one thread at a
        time, and any. So that what is recorded very often can be left in a queue meanwhile, which
        costs still less; `settle` alone then records into the series it feeds."""
        ...


Call = tuple[str, str, float, float]


@define(eq=False)
class RoundTimes:
    """Where the time of a round went, in seconds of `perf_counter`.

    `phases` are in their order; `begins` has when each began, and behind those the round's end.
    `calls` has the plugin, hook, beginning and end of each call of a plugin.
    """

    phases: Sequence[str]
    begins: Sequence[float]
    calls: Sequence[Call]


class Timekeeper(Protocol):
    """Is told of each round that is over, on the loop thread."""

    def __call__(self, times: RoundTimes, /) -> None:
        """Take a round; it may be kept."""
        ...

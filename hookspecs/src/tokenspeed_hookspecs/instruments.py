# SPDX-License-Identifier: MIT
"""Numbers that a rank tells whoever watches it; without a watcher each call does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


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


Span = Callable[[float, float], None]


class Timekeeper(Protocol):
    """Is told where a rank's time goes, on the loop thread, in seconds of `perf_counter`."""

    def round(self, phases: Sequence[str], times: Sequence[float]) -> None:
        """Take a round that is over: its phases in their order, the times at which they began, and
        behind those its end."""
        ...

    def call(self, plugin: str, hook: str) -> Span:
        """Where to tell of the calls of a plugin's hook, each with its beginning and its end; asked
        for once a hook."""
        ...

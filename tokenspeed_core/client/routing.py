# SPDX-License-Identifier: MIT
"""Which engine a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import define, field

from tokenspeed_core.client.config import Routing
from tokenspeed_hookspecs import Load

WAITING_WEIGHT = 6.0
FREE_USAGE = 0.5


class Router(Protocol):
    """Chooses an engine by its place among the engines."""

    def pick(self, in_flight: Sequence[int], loads: Sequence[Load | None]) -> int:
        """An engine, from the requests each has of ours and from what each last reported."""
        ...


@define
class RoundRobin:
    """One engine after the other."""

    _next: int = field(default=0, init=False)

    def pick(self, in_flight: Sequence[int], loads: Sequence[Load | None]) -> int:
        """The next engine in index order."""
        position = self._next % len(in_flight)
        self._next = position + 1
        return position


@define
class LeastLoaded:
    """The engine with the least to do.

    What we have in flight counts at once, so that a burst between two reports spreads. A queue
    weighs the more, the fuller the cache: what waits there waits long. Ties go around.
    """

    _start: int = field(default=0, init=False)

    def pick(self, in_flight: Sequence[int], loads: Sequence[Load | None]) -> int:
        """The engine of the lowest score."""
        count = len(in_flight)
        order = [(self._start + step) % count for step in range(count)]
        position = min(order, key=lambda each: _score(in_flight[each], loads[each]))
        self._start = (position + 1) % count
        return position


def router_of(routing: Routing) -> Router:
    """A fresh router of a kind."""
    return RoundRobin() if routing is Routing.ROUND_ROBIN else LeastLoaded()


def _score(in_flight: int, load: Load | None) -> float:
    if load is None:
        return in_flight
    usage = load.active_pages / load.total_pages if load.total_pages else 0.0
    queued = load.waiting * WAITING_WEIGHT * max(0.0, usage - FREE_USAGE)
    return max(in_flight, load.running + load.waiting) + queued

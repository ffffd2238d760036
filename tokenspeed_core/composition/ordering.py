# SPDX-License-Identifier: MIT
"""The one order of plugins: `after` first, ties by name, whatever order they were found in."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from tokenspeed_core.errors import CompositionError


def order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names in their order; names in `after` that are not loaded are ignored.

    CompositionError names every cycle.
    """
    remaining = {name: [each for each in after[name] if each in after] for name in sorted(after)}
    problems: list[str] = []
    while True:
        sorter = TopologicalSorter(remaining)
        try:
            sorter.prepare()
            break
        except CycleError as error:
            cycle: list[str] = error.args[1]
            problems.append(_described(cycle))
            remaining = _without(remaining, set(cycle))
    if problems:
        raise CompositionError(problems)
    return _drained(sorter)


def _described(cycle: list[str]) -> str:
    steps = [f"{later!r} after {earlier!r}" for earlier, later in pairwise(cycle)]
    return "plugins wait for each other: " + ", ".join(reversed(steps))


def _without(after: Mapping[str, Sequence[str]], gone: set[str]) -> dict[str, list[str]]:
    kept = {name: each for name, each in after.items() if name not in gone}
    return {name: [each for each in before if each not in gone] for name, before in kept.items()}


def _drained(sorter: TopologicalSorter[str]) -> list[str]:
    ready: list[str] = list(sorter.get_ready())
    heapq.heapify(ready)
    ordered: list[str] = []
    while ready:
        name = heapq.heappop(ready)
        ordered.append(name)
        sorter.done(name)
        for each in sorter.get_ready():
            heapq.heappush(ready, each)
    return ordered

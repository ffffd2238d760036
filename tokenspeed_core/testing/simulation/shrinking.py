# SPDX-License-Identifier: MIT
"""A failing plan, made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.simulation.plan import Plan
from tokenspeed_core.testing.simulation.variations import on_ranks

MOST_SHRINKS = 200


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The smallest plan found that still fails: fewer requests, operations, faults and ranks."""
    tries = 0
    while True:
        for smaller in _smaller(plan):
            tries += 1
            if tries > MOST_SHRINKS:
                return plan
            if (smaller.arrivals or smaller.operations) and fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for at in range(len(plan.arrivals)):
        yield evolve(plan, arrivals=[*plan.arrivals[:at], *plan.arrivals[at + 1 :]])
    for at in range(len(plan.operations)):
        yield evolve(plan, operations=[*plan.operations[:at], *plan.operations[at + 1 :]])
    for at in range(len(plan.faults)):
        yield evolve(plan, faults=[*plan.faults[:at], *plan.faults[at + 1 :]])
    if plan.topology != Topology():
        yield on_ranks(plan, Topology())
    if plan.sliding_window is not None:
        yield evolve(plan, sliding_window=None)

# SPDX-License-Identifier: MIT
"""Plans made from a plan: without what cuts answers short, and in ways that change no answer."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.simulation.guests import Guests
from tokenspeed_core.testing.simulation.plan import Plan

Variation = Callable[[Plan], Plan]
NO_PLUGINS, LARGE_POOL = "no plugins", "a large pool"


def plain(plan: Plan) -> Plan:
    """The plan with nothing that ends or stops a request early, or depends on how it is cut."""
    arrivals = [evolve(each, abort_round=None, nan_chunk=False) for each in plan.arrivals]
    return evolve(plan, arrivals=arrivals, operations=(), faults=())


def on_ranks(plan: Plan, topology: Topology) -> Plan:
    """The plan on other ranks, with all requests for the first replica."""
    arrivals = [evolve(each, replica=0) for each in plan.arrivals]
    return evolve(plan, topology=topology, arrivals=arrivals)


def of_guests(plan: Plan) -> Plan:
    """Only the requests that name a guest's feature, on one rank."""
    featured = [each for each in plain(plan).arrivals if each.feature]
    return on_ranks(evolve(plain(plan), arrivals=featured), Topology())


def _not_held(plan: Plan) -> Plan:
    arrivals = [evolve(each, polls=0).featuring(each.feature) for each in plan.arrivals]
    return evolve(plan, arrivals=arrivals)


def _without_guests(plan: Plan) -> Plan:
    return evolve(plan, guests=Guests(), arrivals=[each.featuring({}) for each in plan.arrivals])


VARIATIONS: dict[str, Variation] = {
    "depth 0": lambda plan: evolve(plan, depth=0),
    "depth 2": lambda plan: evolve(plan, depth=2),
    "one rank": lambda plan: on_ranks(plan, Topology()),
    "two ranks": lambda plan: on_ranks(plan, Topology(tp=2)),
    LARGE_POOL: lambda plan: evolve(plan, scheduler={**plan.scheduler, "num_pages": 513}),
    "another interval": lambda plan: evolve(plan, stream_interval=3),
    "nobody held": _not_held,
    "no events": lambda plan: evolve(plan, is_watched=False),
    NO_PLUGINS: _without_guests,
}

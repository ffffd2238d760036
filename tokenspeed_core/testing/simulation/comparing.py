# SPDX-License-Identifier: MIT
"""One plan in several ways, which all give the same answers."""

from __future__ import annotations

from collections.abc import Mapping

from tokenspeed_core.testing.simulation.guests import refusal
from tokenspeed_core.testing.simulation.judging import Answer
from tokenspeed_core.testing.simulation.plan import Plan
from tokenspeed_core.testing.simulation.run import simulate
from tokenspeed_core.testing.simulation.variations import (
    LARGE_POOL,
    NO_PLUGINS,
    VARIATIONS,
    plain,
)


def compare(plan: Plan) -> list[str]:
    """Run the plain plan in every variation that it and its guests take; what differs."""
    base = plain(plan)
    wanted = simulate(base).streams
    found = []
    for name, vary in VARIATIONS.items():
        varied = vary(base)
        if varied == base or not _can_be(varied):
            continue
        got = simulate(varied).streams
        differ = [key for key in _same(name, base, wanted=wanted) if got[key] != wanted[key]]
        if differ:
            found.append(f"{name}: {differ[0]} got {got[differ[0]]}, else {wanted[differ[0]]}")
    return found


def _can_be(plan: Plan) -> bool:
    if plan.topology.pp > 1 and plan.depth == 0:
        return False
    return not (plan.guests and refusal(plan.setup))


def _same(name: str, plan: Plan, *, wanted: Mapping[str, Answer]) -> list[str]:
    """The requests whose answers a variation may not change."""
    if name == LARGE_POOL:
        # A request too large for the pool is refused there and runs in a larger one.
        return [key for key, (tokens, _) in wanted.items() if tokens]
    if name == NO_PLUGINS:
        return [each.message.request_id for each in plan.arrivals if not each.feature]
    return list(wanted)

# SPDX-License-Identifier: MIT
"""Simulated ranks with the plugin: whatever comes and breaks, what must hold holds."""

from __future__ import annotations

from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_core.testing.simulation.guests import Guests
from tokenspeed_core.testing.simulation.plan import Plan
from tokenspeed_core.testing.simulation.run import SimulationError, simulate


def check_seeds(subject: Subject) -> list[str]:
    """The first seeds, up to the first that fails."""
    for seed in range(subject.seeds):
        try:
            simulate(Plan.of(seed, Guests.of(subject)))
        except SimulationError as error:
            told, _, plan = str(error).partition("\n")
            return [f"{told} (of {plan})"]
    return []

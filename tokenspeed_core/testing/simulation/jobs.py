# SPDX-License-Identifier: MIT
"""Seeds on several processors: each seed is a run of its own, wherever it runs."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from attrs import frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.testing.simulation.comparing import compare
from tokenspeed_core.testing.simulation.guests import Guests
from tokenspeed_core.testing.simulation.plan import NO_GUESTS, Plan
from tokenspeed_core.testing.simulation.run import (
    Outcome,
    SimulationError,
    simulate,
    simulate_seeds,
)

SEEDS_A_TURN = 5
Ran = tuple[int, Outcome | SimulationError]


@frozen
class Work:
    """What is done for a seed: its plan is run and, if `is_compared`, run in other ways too."""

    guests: Guests = NO_GUESTS
    is_compared: bool = False

    def run(self, seeds: Sequence[int]) -> Iterator[Ran]:
        """Run seeds."""
        for seed, outcome in simulate_seeds(seeds, self.guests):
            error = self._difference(Plan.of(seed, self.guests))
            yield seed, outcome if isinstance(outcome, SimulationError) else error or outcome

    def fails(self, plan: Plan) -> bool:
        """Whether a plan fails."""
        try:
            simulate(plan)
        except SimulationError:
            return True
        return self._difference(plan) is not None

    def _difference(self, plan: Plan) -> SimulationError | None:
        if not self.is_compared:
            return None
        try:
            found = compare(plan)
        except SimulationError as error:
            return error
        return SimulationError(f"answers differ: {'; '.join(found)}\n{plan}") if found else None


def simulate_on(jobs: int, seeds: Sequence[int], *, work: Work) -> Iterator[Ran]:
    """Run each seed's plan on so many processes, and give what came of it, in the seeds' order.

    EngineError if a process died, which ends the run.
    """
    if jobs == 1:
        yield from work.run(seeds)
        return
    turns = [seeds[at : at + SEEDS_A_TURN] for at in range(0, len(seeds), SEEDS_A_TURN)]
    # A new interpreter each: a fork would take the threads' locks along, not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_be_silent) as pool:
        waiting = [(turn, pool.submit(_turn, turn, work)) for turn in turns]
        for turn, future in waiting:
            try:
                yield from future.result()
            except BrokenProcessPool as error:
                raise EngineError(
                    f"expected the seeds from {turn[0]} on to run, a process of the {jobs} died; "
                    "out of memory, or the scheduler crashed: run the next seeds with --jobs 1"
                ) from error


def _turn(seeds: Sequence[int], work: Work) -> list[Ran]:
    return list(work.run(seeds))


def _be_silent() -> None:
    """Faults make engines fail on purpose; what they log then is no news."""
    logging.disable(logging.CRITICAL)

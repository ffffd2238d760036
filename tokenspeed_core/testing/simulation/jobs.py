# SPDX-License-Identifier: MIT
"""Seeds on several processors: each seed is a run of its own, wherever it runs."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tokenspeed_core.errors import EngineError
from tokenspeed_core.testing.simulation.run import Outcome, SimulationError, simulate_seeds

SEEDS_A_TURN = 5
Ran = tuple[int, Outcome | SimulationError]


def simulate_on(jobs: int, seeds: Sequence[int]) -> Iterator[Ran]:
    """Run each seed's plan on so many processes, and give what came of it, in the seeds' order.

    EngineError if a process died, which ends the run.
    """
    if jobs == 1:
        yield from simulate_seeds(seeds)
        return
    turns = [seeds[at : at + SEEDS_A_TURN] for at in range(0, len(seeds), SEEDS_A_TURN)]
    # A new interpreter each: a fork would take the threads' locks along, not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_be_silent) as pool:
        waiting = [(turn, pool.submit(_turn, turn)) for turn in turns]
        for turn, future in waiting:
            try:
                yield from future.result()
            except BrokenProcessPool as error:
                raise EngineError(
                    f"expected the seeds from {turn[0]} on to run, a process of the {jobs} died; "
                    "out of memory, or the scheduler crashed: run the next seeds with --jobs 1"
                ) from error


def _turn(seeds: Sequence[int]) -> list[Ran]:
    return list(simulate_seeds(seeds))


def _be_silent() -> None:
    """Faults make engines fail on purpose; what they log then is no news."""
    logging.disable(logging.CRITICAL)

# SPDX-License-Identifier: MIT
"""What the scheduler driver adds to a round of the bare wheel.

Both run the same requests, all decoding, one token a row and round, in turns inside one process;
only the ratio means anything. Run it with `python tests/benchmarks/driver_cost.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import Any

import tokenspeed_scheduler as wheel

from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_hookspecs import CommitOutcome, RequestSpec, SchedulerSettings

ROWS = (1, 16, 64, 256, 1024)
NUM_PROMPT, BUDGET, ROUNDS, TURNS = 128, 3000, 40, 24


def settings(rows: int) -> SchedulerSettings:
    """A pool that holds all rows to their end."""
    pages = rows * ((NUM_PROMPT + BUDGET) // 64 + 2) + 1
    return SchedulerSettings(num_pages=pages, max_batch_size=rows, max_scheduled_tokens=1 << 18)


def specs(rows: int) -> list[RequestSpec]:
    """Prompts that share nothing."""
    starts = (1000 * row for row in range(rows))
    return [
        RequestSpec(f"request-{row:06d}", range(start, start + NUM_PROMPT), BUDGET)
        for row, start in enumerate(starts)
    ]


def driver_round(driver: NativeScheduler) -> Callable[[], None]:
    """One round through the driver: plan, commit, advance."""

    def one() -> None:
        batch = driver.plan().batch
        assert batch is not None
        driver.commit(batch, CommitOutcome([7] * len(batch.request_ids)))
        driver.advance()

    return one


def bare_round(scheduler: Any) -> Callable[[], None]:
    """The same on the wheel, with events kept per request and each property read once."""
    results: dict[str, Any] = {}
    reserves: dict[str, Any] = {}

    def one() -> None:
        plan = scheduler.next_execution_plan()
        batch = plan.forward[0]
        request_ids, num_extends = batch.request_ids, batch.num_extends()
        read_all(plan, batch)
        events = wheel.ExecutionEvent()
        for row, (name, token) in enumerate(zip(request_ids, repeat(7))):
            if name not in results:
                results[name], reserves[name] = new_events(name)
            results[name].tokens = [token]
            events.add_event(results[name])
            if row >= num_extends:
                events.add_event(reserves[name])
        scheduler.advance(events)

    return one


def new_events(name: str) -> tuple[Any, Any]:
    """A result and a reserve of one token."""
    result, reserve = wheel.ForwardEvent.ExtendResult(), wheel.ForwardEvent.UpdateReserveNumTokens()
    result.request_id = reserve.request_id = name
    reserve.reserve_num_tokens_in_next_schedule_event = 1
    return result, reserve


def read_all(plan: Any, batch: Any) -> Sequence[Any]:
    """What any data plane needs of a plan."""
    return (
        batch.request_pool_indices,
        batch.input_lengths,
        batch.decode_input_ids,
        batch.block_tables_arrays(),
        plan.pages_to_zero_arrays(),
        plan.pages_to_copy_arrays(),
        plan.cache,
        plan.aborts,
    )


def timed(one: Callable[[], None]) -> float:
    """Microseconds a round."""
    start = perf_counter_ns()
    for _ in range(ROUNDS):
        one()
    return (perf_counter_ns() - start) / ROUNDS / 1000


def compare(rows: int) -> tuple[float, float]:
    """Microseconds a round of the bare wheel and of the driver, each its best turn."""
    driver = NativeScheduler(settings(rows))
    bare: Any = NativeScheduler(settings(rows)).native
    driver.submit(specs(rows))
    bare_specs = []
    for spec in specs(rows):
        native = wheel.RequestSpec()
        native.request_id, native.tokens = spec.request_id, spec.prompt_ids
        native.max_new_tokens = spec.max_new_tokens
        bare_specs.append(native)
    bare.submit_requests(bare_specs)
    bare_one, driver_one = bare_round(bare), driver_round(driver)
    for one in (bare_one, driver_one):
        timed(one)  # the prompts
    turns = [(timed(bare_one), timed(driver_one)) for _ in range(TURNS)]
    return min(turn[0] for turn in turns), min(turn[1] for turn in turns)


def main() -> None:
    """Print one line per batch size."""
    sys.stdout.write("rows   bare us   driver us   ratio\n")
    for rows in ROWS:
        bare, driver = compare(rows)
        sys.stdout.write(f"{rows:4d} {bare:9.1f} {driver:11.1f} {driver / bare:7.2f}\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""What each installed plugin's hooks and stages cost, against a budget: a share of a round.

An engine of 64 rows that all decode, with requests that come and end beside them, of every kind
that the plugin offers as samples. Each call is timed by the processor time of the loop's thread,
so that a busy machine changes little; what the plugin's own threads do is not in it. A hook's
median may be `BUDGET` of a round of the same engine without plugins.

`python tests/benchmarks/plugin_cost.py [NAME ...] [--set NAME.OPTION=VALUE ...]`; returns 1 where a
hook is over its budget, or a plugin cannot run.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from time import thread_time_ns
from typing import Any

from attrs import evolve

from tokenspeed_core.composition.built_in import BUILT_IN, built_in
from tokenspeed_core.composition.discovery import installed
from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.testing.conformance.running import made, setup_of
from tokenspeed_core.testing.conformance.subject import Subject, installed_subject
from tokenspeed_core.testing.conformance.watching import Watcher
from tokenspeed_core.testing.engine import EngineFixture, EngineSetup
from tokenspeed_core.testing.messages import request

ROWS, ROUNDS, WARM = 64, 600, 60
EVERY = 10  # rounds between arrivals of each kind
BUDGET = 0.05
SCHEDULER = {
    "num_pages": 8192,
    "host_pages": 64,
    "max_batch_size": 2 * ROWS,
    "max_scheduled_tokens": 8192,
}
Costs = Mapping[str, Sequence[float]]


def run(setup: EngineSetup, kinds: Sequence[Mapping[str, object]]) -> list[float]:
    """Run the traffic; microseconds of each round after the first ones."""
    plane = {**setup.plane, "checked_pages": False}
    engine = EngineFixture(evolve(setup, scheduler=SCHEDULER, plane=plane))
    engine.put(*(request(f"row-{row}", 40, budget=4 * ROUNDS) for row in range(ROWS)))
    times = []
    for number in range(ROUNDS):
        if number % EVERY == 0:
            engine.put(*(made(f"r{number}-{at}", kind) for at, kind in enumerate(kinds)))
        start = thread_time_ns()
        engine.loop.round()
        times.append((thread_time_ns() - start) / 1000)
    engine.rank.stop()
    return times[WARM:]


def costs_of(subject: Subject) -> Costs:
    """Microseconds of every call by hook or stage method, once caches are warm."""
    watcher = Watcher()
    run(setup_of(subject, watcher), subject.kinds)
    found: dict[str, list[float]] = {}
    for call in watcher.calls:
        if call.round > WARM:
            found.setdefault(call.hook, []).append(call.cpu_s * 1e6)
    return found


def show(name: str, costs: Costs, *, round_us: float) -> bool:
    """Print a line a hook; whether all are within the budget."""
    is_within = True
    for hook, times in sorted(costs.items(), key=lambda item: -median(item[1])):
        middle, share = median(times), median(times) / round_us
        late = sorted(times)[int(len(times) * 0.99)]
        over = "" if share <= BUDGET else f"   over {BUDGET:.0%}"
        is_within &= share <= BUDGET
        print(
            f"{name:12s} {hook:34s} {len(times):6d} {middle:10.1f} {late:10.1f} {share:8.1%}{over}"
        )
    return is_within


def options_of(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`NAME.OPTION=VALUE` by plugin; a value is JSON, or a text."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        place, _, value = text.partition("=")
        name, _, option = place.partition(".")
        own = found.setdefault(name, {})
        try:
            own[option] = json.loads(value)
        except ValueError:
            own[option] = value
    return found


def main() -> int:
    """Measure the named plugins, or every one there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help="an installed plugin")
    parser.add_argument("--set", action="append", default=[], metavar="NAME.OPTION=VALUE")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    known = {**installed().plugins, **{n: each for n, each in built_in().items() if n in BUILT_IN}}
    options = options_of(given.set)
    round_us = median(run(EngineSetup(), [{}]))
    print(f"a round of {ROWS} rows without plugins: {round_us:.0f} us\n")
    print(
        f"{'plugin':12s} {'hook':34s} {'calls':>6s} {'median us':>10s} {'p99 us':>10s}   of round"
    )
    is_within = True
    for name in given.name or sorted(known):
        try:
            subject = installed_subject(known[name], options=options.get(name, {}))
            is_within &= show(name, costs_of(subject), round_us=round_us)
        except (CompositionError, EngineError) as error:
            print(f"{name:12s} cannot run: {error}")
            is_within = False
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: MIT
"""`tokenspeed simulate`: seeded runs of the real loop and scheduler, with faults."""

from __future__ import annotations

import json
import logging
import sys
import time
from argparse import Namespace
from collections import Counter

from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.errors import ConfigError

FAILED = 1
MOST_SHOWN = 5


def run(arguments: list[str]) -> int:
    """Run the command; returns 1 if some seed failed."""
    parser = command_parser(
        "simulate",
        description="Run the loop and the scheduler on simulated ranks, each seed a plan of its "
        "own: ranks, settings, requests, operations and faults. A failing plan is made smaller "
        "and printed.",
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first one (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="on N processes (1)")
    parser.add_argument("--show", type=int, metavar="SEED", help="print a seed's plan and end")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    for name in ("seeds", "jobs"):
        if getattr(given, name) < 1:
            raise ConfigError([f"--{name}: expected at least 1, got {getattr(given, name)}"])
    # Faults make engines fail on purpose; what they log then is no news.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _show(given.show) if given.show is not None else _run(given)
    finally:
        logging.disable(before)


def _show(seed: int) -> int:
    from tokenspeed_core.testing.simulation.plan import Plan

    print(Plan.of(seed))
    return 0


def _run(given: Namespace) -> int:
    from tokenspeed_core.testing.simulation.jobs import simulate_on
    from tokenspeed_core.testing.simulation.plan import Plan
    from tokenspeed_core.testing.simulation.run import SimulationError, shrink

    seeds = range(given.first, given.first + given.seeds)
    start = time.perf_counter()
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failures: dict[int, str] = {}
    for seed, outcome in simulate_on(given.jobs, seeds):
        if isinstance(outcome, SimulationError):
            failures[seed] = str(outcome).splitlines()[0]
            if len(failures) <= MOST_SHOWN and not given.json:
                print(f"seed {seed}: {failures[seed]}", file=sys.stderr)
                print(f"made smaller, {shrink(Plan.of(seed))}\n", file=sys.stderr)
            continue
        totals.update(rounds=outcome.rounds, requests=outcome.requests, tokens=outcome.tokens)
        faults.update(fault.kind for fault in outcome.faults)
    found = {
        "seeds": given.seeds,
        **totals,
        "faults": dict(sorted(faults.items())),
        "failures": failures,
        "seconds": round(time.perf_counter() - start, 1),
    }
    if given.json:
        print(json.dumps(found))
    else:
        print(
            f"{given.seeds} seeds, {totals['rounds']} rounds, {totals['requests']} requests, "
            f"{totals['tokens']} tokens, {sum(faults.values())} faults in {found['seconds']} s: "
            f"{len(failures)} failed"
        )
    return FAILED if failures else 0

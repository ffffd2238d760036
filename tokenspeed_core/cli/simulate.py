# SPDX-License-Identifier: MIT
"""`tokenspeed simulate`: seeded runs of the real loop and scheduler, with faults and plugins."""

from __future__ import annotations

import json
import logging
import sys
import time
from argparse import Namespace
from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import evolve

from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.cli.tried_plugins import (
    add_trial_flags,
    features_of,
    options_of,
    sources_of,
)
from tokenspeed_core.composition.plugin_flags import add_plugin_flags
from tokenspeed_core.composition.shorthands import add_shorthands, find_shorthands
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.flags import reject_unknown
from tokenspeed_core.errors import ConfigError

if TYPE_CHECKING:
    from tokenspeed_core.testing.simulation.guests import Guests
    from tokenspeed_core.testing.simulation.jobs import Ran, Work

FAILED = 1
MOST_SHOWN = 5


def run(arguments: list[str]) -> int:
    """Run the command; returns 1 if some seed failed."""
    given, names = _parse(arguments)
    for name in ("seeds", "jobs"):
        if getattr(given, name) < 1:
            raise ConfigError([f"--{name}: expected at least 1, got {getattr(given, name)}"])
    guests = _guests(given, names)
    # Faults make engines fail on purpose; what they log then is no news.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _run(given, guests) if given.show is None else _show(given.show, guests)
    finally:
        logging.disable(before)


def _parse(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """The arguments, and the names of the plugins that they choose."""
    parser, first = _parser(), _parser(add_help=False)
    short = find_shorthands(arguments, taken=parser)
    for each in (parser, first):
        add_shorthands(each, short)
    chosen, _ = first.parse_known_args(arguments)
    by_flag = [each.plugin.name for each in short if each.dest in vars(chosen)]
    names = list(dict.fromkeys([*chosen.plugin, *by_flag]))
    add_plugin_flags(parser, EngineConfig(plugins=tuple(names)))
    given, extras = parser.parse_known_args(arguments)
    reject_unknown(parser, extras)
    return given, names


def _parser(**options: Any) -> CommandParser:
    parser = command_parser(
        "simulate",
        description="Run the loop and the scheduler on simulated ranks, each seed a plan of its "
        "own: ranks, settings, requests, operations and faults. A failing plan is made smaller "
        "and printed. Installed plugins are loaded beside the simulation's own with --plugin; "
        "their options are flags, as everywhere.",
        **options,
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first one (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="on N processes (1)")
    parser.add_argument("--show", type=int, metavar="SEED", help="print a seed's plan and end")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="load this plugin on every rank; may be repeated",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also run each plan, without what ends requests early, in other ways: depths, ranks, "
        "pools, without plugins; answers must not differ",
    )
    add_trial_flags(parser)
    return parser


def _guests(given: Namespace, names: list[str]) -> Guests:
    """The plugins that were chosen, each with the given features that it claims or its samples."""
    from tokenspeed_core.testing.conformance.subject import installed_subject
    from tokenspeed_core.testing.simulation.guests import Guests

    subjects = []
    unclaimed = features_of(given)
    for source in sources_of(names):
        subject = installed_subject(source, options=options_of(source.name, given))
        own = [each for each in unclaimed if set(each) & set(subject.plugin.features)]
        subjects.append(evolve(subject, features=own) if own else subject)
        unclaimed = [each for each in unclaimed if each not in own]
    if unclaimed:
        raise ConfigError([f"--feature: no plugin of {names} claims {dict(unclaimed[0])}"])
    return Guests.of(*subjects)


def _show(seed: int, guests: Guests) -> int:
    from tokenspeed_core.testing.simulation.plan import Plan

    print(Plan.of(seed, guests))
    return 0


def _run(given: Namespace, guests: Guests) -> int:
    from tokenspeed_core.testing.simulation.jobs import Work, simulate_on

    seeds = range(given.first, given.first + given.seeds)
    start = time.perf_counter()
    work = Work(guests, given.compare)
    tally = _Tally(work, is_quiet=given.json)
    for ran in simulate_on(given.jobs, seeds, work=work):
        tally.take(ran)
    found = {
        "seeds": given.seeds,
        **tally.totals,
        "faults": dict(sorted(tally.faults.items())),
        "failures": tally.failures,
        "seconds": round(time.perf_counter() - start, 1),
    }
    if given.json:
        print(json.dumps(found))
    else:
        print(
            f"{given.seeds} seeds, {tally.totals['rounds']} rounds, {tally.totals['requests']} "
            f"requests, {tally.totals['tokens']} tokens, {sum(tally.faults.values())} faults in "
            f"{found['seconds']} s: {len(tally.failures)} failed"
        )
    return FAILED if tally.failures else 0


class _Tally:
    """What seeds came to; the first failures are made smaller and shown."""

    def __init__(self, work: Work, *, is_quiet: bool) -> None:
        self._work = work
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failures: dict[int, str] = {}
        self._is_quiet = is_quiet

    def take(self, ran: Ran) -> None:
        """Count a seed."""
        from tokenspeed_core.testing.simulation.run import Outcome

        seed, outcome = ran
        if isinstance(outcome, Outcome):
            self.totals.update(
                rounds=outcome.rounds, requests=outcome.requests, tokens=outcome.tokens
            )
            self.faults.update(fault.kind for fault in outcome.faults)
            return
        self.failures[seed] = str(outcome).splitlines()[0]
        if len(self.failures) <= MOST_SHOWN and not self._is_quiet:
            self._show(seed)

    def _show(self, seed: int) -> None:
        from tokenspeed_core.testing.simulation.plan import Plan
        from tokenspeed_core.testing.simulation.shrinking import shrink

        print(f"seed {seed}: {self.failures[seed]}", file=sys.stderr)
        plan = Plan.of(seed, self._work.guests)
        if self._work.fails(plan):
            print(f"made smaller, {shrink(plan, self._work.fails)}\n", file=sys.stderr)
        else:
            print(f"which it does not when run again:\n{plan}\n", file=sys.stderr)

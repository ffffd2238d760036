# SPDX-License-Identifier: MIT
"""`tokenspeed check`: hold installed plugins to the contract, and say what breaks it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.cli.tried_plugins import (
    add_trial_flags,
    features_of,
    options_of,
    sources_of,
)
from tokenspeed_core.composition.plugin_flags import add_plugin_flags
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.flags import reject_unknown

FAILED = 1


def run(arguments: list[str]) -> int:
    """Run the command; returns 1 if a plugin breaks the contract."""
    first, _ = _parser().parse_known_args(arguments)
    sources = sources_of(first.name)
    parser = _parser()
    add_plugin_flags(parser, EngineConfig(plugins=tuple(first.name)))
    given, extras = parser.parse_known_args(arguments)
    reject_unknown(parser, extras)
    from tokenspeed_core.testing.conformance.report import report_on

    features = features_of(given)
    reports = []
    for source in sources:
        options = options_of(source.name, given)
        with _silence():
            report = report_on(source, options=options, features=features)
        reports.append(report)
        if not given.json:
            report.show(Console())
    if given.json:
        print(json.dumps({"plugins": [report.as_map() for report in reports]}, indent=2))
    return 0 if all(report.has_passed for report in reports) else FAILED


@contextmanager
def _silence() -> Iterator[None]:
    """A check makes a plugin fail on purpose; what an engine logs then is no news."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _parser() -> CommandParser:
    parser = command_parser(
        "check",
        description="Hold installed plugins to the contract, and say what breaks it. "
        "An option of a plugin is a flag, as everywhere.",
        usage="%(prog)s [--json] [--config FILE] [--feature NAME=VALUE] [flags of the plugins] "
        "NAME ...",
    )
    parser.add_argument("name", nargs="+", metavar="NAME", help="an installed plugin")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_trial_flags(parser)
    return parser

# SPDX-License-Identifier: MIT
"""`tokenspeed check`: hold installed plugins to the contract, and say what breaks it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.composition.built_in import built_in
from tokenspeed_core.composition.discovery import InstalledPlugin, installed
from tokenspeed_core.composition.plugin_flags import add_plugin_flags
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.flags import reject_unknown
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.errors import ConfigError

FAILED = 1


def run(arguments: list[str]) -> int:
    """Run the command; returns 1 if a plugin breaks the contract."""
    first, _ = _parser().parse_known_args(arguments)
    known = {**installed().plugins, **built_in()}
    sources = _chosen(first.name, known)
    parser = _parser()
    add_plugin_flags(parser, EngineConfig(plugins=tuple(first.name)))
    given, extras = parser.parse_known_args(arguments)
    reject_unknown(parser, extras)
    from tokenspeed_core.testing.conformance.report import report_on

    features = _features(given.feature)
    reports = []
    for source in sources:
        options = _options(vars(given), source.name)
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
        usage="%(prog)s [--json] [--feature NAME=VALUE] [flags of the plugins] NAME ...",
    )
    parser.add_argument("name", nargs="+", metavar="NAME", help="an installed plugin")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--feature",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="send requests with this feature too; VALUE is JSON, or a text; may be repeated",
    )
    return parser


def _chosen(names: Sequence[str], known: Mapping[str, InstalledPlugin]) -> list[InstalledPlugin]:
    wrong = [unknown("plugin", name, known=known) for name in names if name not in known]
    if wrong:
        raise ConfigError(wrong)
    return [known[name] for name in names]


def _features(given: Sequence[str]) -> list[dict[str, object]]:
    features: list[dict[str, object]] = []
    for text in given:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise ConfigError([f"--feature: expected NAME=VALUE, got {text!r}"])
        features.append({name: _value(value)})
    return features


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _options(given: Mapping[str, Any], plugin: str) -> dict[str, Any]:
    prefix = f"{plugin}."
    return {key.removeprefix(prefix): given[key] for key in given if key.startswith(prefix)}

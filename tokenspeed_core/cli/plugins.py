# SPDX-License-Identifier: MIT
"""`tokenspeed plugins`: what is installed, what is loaded or why not, and each hook's order."""

from __future__ import annotations

import sys

from rich.console import Console

from tokenspeed_core.cli.engine_flags import parse_with_engine, shown_config
from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.composition.report import PluginsReport, plugins_report


def run(arguments: list[str]) -> int:
    """Run the command; returns 2 if what is configured could not be composed."""
    parser = command_parser(
        "plugins",
        description="Show the plugins, and each hook's order.",
        usage="%(prog)s [--json] [flags]",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parsed = parse_with_engine(parser, arguments)
    if parsed.own.show_config:
        sys.stdout.write(shown_config(parsed.config))
        return 0
    report = plugins_report(parsed.config)
    if parsed.own.json:
        print(report.to_json())
    else:
        _show(report)
    return 2 if report.problems else 0


def _show(report: PluginsReport) -> None:
    console = Console()
    table = report.table()
    for column in table.columns:
        column.overflow = "fold"  # a name cut short names nothing
    console.print(table)
    for hook, names in report.hooks.items():
        console.print(f"{hook}: {' → '.join(names)}", highlight=False)
    for problem in report.problems:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False)

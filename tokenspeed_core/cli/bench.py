# SPDX-License-Identifier: MIT
"""`tokenspeed bench`: the benchmarks of a checkout. They are no part of what is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tokenspeed_core
from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.errors import ConfigError

FOLDER = Path("tests", "benchmarks")


def run(arguments: list[str]) -> int:
    """Run the named benchmark, or all, each in a process of its own; returns the worst code.

    What follows the name is for the benchmark: `tokenspeed bench round_cost --json`.
    """
    scripts = find_scripts()
    parser = command_parser("bench", description="Run a benchmark of this checkout, or all.")
    known = ", ".join(scripts) or "those of a checkout; there is none here"
    parser.add_argument("name", nargs="?", help=f"one of {known}")
    parser.add_argument("rest", nargs="...", metavar="...", help="flags of that benchmark")
    chosen = parser.parse_args(arguments)
    if not scripts:
        raise ConfigError([f"benchmarks live in {FOLDER} of a checkout; this engine has none"])
    if chosen.name is not None and chosen.name not in scripts:
        raise ConfigError([unknown("benchmark", chosen.name, known=scripts)])
    codes = []
    for name in [chosen.name] if chosen.name else scripts:
        print(f"== {name}", file=sys.stderr, flush=True)
        command = [sys.executable, scripts[name], *chosen.rest]
        codes.append(subprocess.run(command, check=False).returncode)
    return max(codes)


def find_scripts() -> dict[str, Path]:
    """The benchmark scripts beside this package, by name; none where there is no checkout."""
    folder = Path(tokenspeed_core.__file__).parents[1] / FOLDER
    return {path.stem: path for path in sorted(folder.glob("*.py"))}

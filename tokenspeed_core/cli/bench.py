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
    """Run the named benchmarks, or all, each in a process of its own; returns the worst code."""
    scripts = find_scripts()
    parser = command_parser("bench", description=f"Run benchmarks: {', '.join(scripts)}.")
    parser.add_argument("name", nargs="*", help="a benchmark; all of them without a name")
    wanted = parser.parse_args(arguments).name or list(scripts)
    wrong = [unknown("benchmark", name, known=scripts) for name in wanted if name not in scripts]
    if wrong:
        raise ConfigError(wrong)
    codes = []
    for name in wanted:
        print(f"== {name}", flush=True)
        codes.append(subprocess.run([sys.executable, scripts[name]], check=False).returncode)
    return max(codes)


def find_scripts() -> dict[str, Path]:
    """The benchmark scripts beside this package, by name; ConfigError if there are none."""
    folder = Path(tokenspeed_core.__file__).parents[1] / FOLDER
    scripts = {path.stem: path for path in sorted(folder.glob("*.py"))}
    if not scripts:
        raise ConfigError(
            [f"benchmarks live in {FOLDER} of a checkout; this engine is installed without one"]
        )
    return scripts

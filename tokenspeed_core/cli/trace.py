# SPDX-License-Identifier: MIT
"""`tokenspeed trace`: complete prompts as `generate` does, and write what the rounds did."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenspeed_core.cli import generate
from tokenspeed_core.errors import ConfigError

FAILED = 1
HELP = {"-h", "--help"}
USAGE = """\
usage: tokenspeed trace [--out FILE] [flags of generate] PROMPT ...

Complete prompts, and write the rounds to FILE (trace.json) for https://ui.perfetto.dev: a track a
phase, a slice a plugin's call, forwards, and an arrow a request. serve, engine, chat and generate
do the same with --trace FILE. What generate takes:
"""


def run(arguments: list[str]) -> int:
    """Run the command; returns generate's exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--out", type=Path, default=Path("trace.json"))
    try:
        given, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError([str(error)]) from error
    if HELP & {*rest}:
        print(USAGE)
        return generate.run(["--help"])
    before = _written_at(given.out)
    code = generate.run([*rest, "--trace", str(given.out)])
    if _written_at(given.out) != before:
        print(f"wrote {given.out}; open it at https://ui.perfetto.dev", file=sys.stderr)
        return code
    print(
        f"tokenspeed: no trace was written to {given.out}; `tokenspeed plugins` with the same "
        "flags tells whether its observer, trace, was loaded",
        file=sys.stderr,
    )
    return code or FAILED


def _written_at(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None

# SPDX-License-Identifier: MIT
"""What one token costs from a cold process: seconds from its start, and its peak memory.

    python tests/benchmarks/start_cost.py [--json] [--times 3]

Runs `tokenspeed generate` with the model in the cache, and the same process importing torch alone,
in turns: what is left between them is ours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from time import perf_counter

from attrs import asdict, frozen

FULL = ("-m", "tokenspeed_core", "generate", "The capital of France is", "--max-tokens", "1")
TORCH = ("-c", "import torch")
MIB = 1024


@frozen
class Start:
    """One process, from its start to its end."""

    seconds: float
    peak_mib: float


def measure(*arguments: str) -> Start:
    """Run a Python process and read what the system counted; RuntimeError if it fails."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    begun = perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)],
    )
    _, status, usage = os.wait4(child, 0)
    seconds = perf_counter() - begun
    os.close(quiet)
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"python {' '.join(arguments)} ended with code {code}")
    return Start(seconds, usage.ru_maxrss / MIB)


def main() -> int:
    """Measure in turns and print the best of each, because other work only ever slows a run."""
    parser = argparse.ArgumentParser(description="The cost of one token from a cold process.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--times", type=int, default=3, help="runs of each (3)")
    chosen = parser.parse_args()
    measure(*FULL)  # fetches and converts the model where that was never done
    turns = [(measure(*FULL), measure(*TORCH)) for _ in range(chosen.times)]
    full = min((turn[0] for turn in turns), key=lambda start: start.seconds)
    torch = min((turn[1] for turn in turns), key=lambda start: start.seconds)
    ratio = round(full.seconds / torch.seconds, 2)
    if chosen.json:
        found = {"generate": asdict(full), "import_torch": asdict(torch), "ratio": ratio}
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    for name, start in (("generate one token", full), ("import torch", torch)):
        sys.stdout.write(f"{name:20} {start.seconds:6.2f} s  {start.peak_mib:7.0f} MiB\n")
    sys.stdout.write(f"{'ratio':20} {ratio:6.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

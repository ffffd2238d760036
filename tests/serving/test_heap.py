# SPDX-License-Identifier: MIT
"""What a serving process loaded is not looked through again by Python's collector."""

from __future__ import annotations

import subprocess
import sys

SETTLED = """
import gc
from tokenspeed_core.serving.heap import settle_heap

loaded = [[n] for n in range(50_000)]
settle_heap()
left = len(gc.get_objects())
assert left < 5_000, left
cycle = []
cycle.append(cycle)
del cycle
assert gc.collect() >= 1  # what comes later is collected as before
"""


def test_what_is_loaded_is_left_out_of_collections() -> None:
    """In a process of its own, since this one collects what tests leave."""
    subprocess.run([sys.executable, "-c", SETTLED], check=True)

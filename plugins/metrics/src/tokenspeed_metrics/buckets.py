# SPDX-License-Identifier: MIT
"""The buckets of the engine's own histograms; seconds, except where the name says tokens."""

from __future__ import annotations

BATCH_TOKENS = (0, *(2**power for power in range(14)))
QUEUE = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20),
    *(30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
FIRST_TOKEN = (0.1, 0.3, 0.5, 0.7, 0.9, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 120, 160)
PER_TOKEN = (
    *(0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1),
    *(0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1, 2),
)
BETWEEN_TOKENS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2),
)
WHOLE_REQUEST = (
    *(0.1, 0.2, 0.4, 0.8, 1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 250, 300, 350, 500, 1000),
)


def lengths_up_to(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to the first that is not below the longest."""
    steps = [step * 10**power for power in range(10) for step in (1, 2, 5)]
    return tuple(steps[: 1 + sum(step < longest for step in steps)])

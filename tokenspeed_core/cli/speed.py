# SPDX-License-Identifier: MIT
"""The closing line of a run: tokens, their speed, and what the prefix cache saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from time import perf_counter

from tokenspeed_core.completion import Completion
from tokenspeed_core.requests.state import DEVICE


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def told(self, completions: Sequence[Completion]) -> str:
        """Sum up what was completed since."""
        seconds = max(perf_counter() - self._start, 1e-9)
        usages = [each.usage for each in completions]
        prompt = sum(usage.prompt_tokens for usage in usages)
        cached = sum(usage.cached_tokens for usage in usages)
        drawn = sum(usage.completion_tokens for usage in usages)
        tiers = Counter[str]()
        for usage in usages:
            tiers.update(usage.cached_by_tier or {DEVICE: usage.cached_tokens})
        told = ", ".join(f"{tiers[tier]} {tier}" for tier in tiers)
        places = f" ({told})" if any(usage.cached_by_tier for usage in usages) else ""
        return (
            f"{prompt} prompt tokens, {cached} of them from the cache{places}; "
            f"{drawn} tokens in {seconds:.2f} s, {drawn / seconds:.1f} tokens/s"
        )

# SPDX-License-Identifier: MIT
"""The closing line of a run: tokens, their speed, and what the prefix cache saved."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from tokenspeed_core.completion import Completion


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
        return (
            f"{prompt} prompt tokens, {cached} of them from the cache; "
            f"{drawn} tokens in {seconds:.2f} s, {drawn / seconds:.1f} tokens/s"
        )

# SPDX-License-Identifier: MIT
"""The scores a scripted forward reports: telling values, like its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenspeed_hookspecs import Alternatives, LogprobPlan

FIRST_ALTERNATIVE = 900


def prompt_logprob(position: int) -> float:
    """The logprob of the prompt token after a position."""
    return -(position + 1) / 10


def alternatives(
    logprobs: npt.NDArray[np.floating], tokens: npt.NDArray[np.int64], *, count: int
) -> Alternatives:
    """Per position the token itself, then id 900 + r, lower by r; both arrays [n, count]."""
    ranks = np.arange(count)
    values = (logprobs[:, None] - ranks).astype(np.float32)
    ids = np.broadcast_to(FIRST_ALTERNATIVE + ranks, values.shape).astype(np.int64)
    if count:
        ids[:, 0] = tokens
    return Alternatives(values, ids)


def prompt_scores(
    plan: LogprobPlan, prompts: Sequence[Sequence[int]]
) -> tuple[npt.NDArray[np.float32], Alternatives | None]:
    """The planned positions' logprobs, float32, and alternatives; `prompts` has one a row."""
    spans = [
        (prompts[row], position)
        for row, (count, start) in enumerate(zip(plan.counts, plan.position_starts, strict=True))
        for position in range(start, start + count)
    ]
    values = np.array([prompt_logprob(position) for _, position in spans], dtype=np.float32)
    if not plan.top_k:
        return values, None
    targets = np.array([prompt[position + 1] for prompt, position in spans], dtype=np.int64)
    return values, alternatives(values, targets, count=plan.top_k)

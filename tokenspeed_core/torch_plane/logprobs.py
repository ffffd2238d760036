# SPDX-License-Identifier: MIT
"""Logprobs, of the logits as the model gave them: before penalties, bias, masks and temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_hookspecs import Batch, LogprobPlan

# Logits of so many bytes are held at a time while a prompt is scored.
CHUNK_BYTES = 64 << 20
# Ties are broken alike however many alternatives the neighbours want, as long as it is no more.
SELECTED = 32


@frozen(eq=False)
class Scores:
    """Logprobs of n targets, float32 [n]; alternatives best first, [n, k], if any are wanted."""

    values: Tensor
    alternative_values: Tensor | None = None
    alternative_ids: Tensor | None = None


def score(logits: Tensor, targets: Tensor, *, top: int) -> Scores:
    """Score targets int64 [n] by logits [n, vocab], with `top` alternatives."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if not top:
        return Scores(values)
    vocab = logprobs.shape[-1]
    best = torch.topk(logprobs, min(max(top, SELECTED), vocab), dim=-1)
    return Scores(values, best.values[:, :top], best.indices[:, :top])


def spread(scores: Scores, rows: Tensor, num_rows: int) -> Scores:
    """Give scores of some rows, int64 [n], a place among all; the other rows hold zeros."""

    def wide(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        return part.new_zeros(num_rows, *part.shape[1:]).index_copy_(0, rows, part)

    values = wide(scores.values)
    assert values is not None
    return Scores(values, wide(scores.alternative_values), wide(scores.alternative_ids))


def score_prompt(
    batch: Batch,
    plan: LogprobPlan,
    *,
    logits_of: Callable[[Tensor], Tensor],
    vocab_size: int,
    device: torch.device,
) -> Scores | None:
    """Score the planned prompt positions, in plan order; None if there are none.

    `logits_of` gives the logits [n, vocab] of positions int64 [n] of the flat batch. It is asked for
    a bounded number of them at a time.
    """
    where = [
        position
        for start, count in zip(plan.row_starts, plan.counts, strict=True)
        for position in range(start, start + count)
    ]
    if not where:
        return None
    step = max(1, CHUNK_BYTES // (4 * vocab_size))
    parts = []
    for at in range(0, len(where), step):
        chosen = where[at : at + step]
        following = [batch.shifted_input_ids[position] for position in chosen]
        targets = torch.tensor(following, dtype=torch.int64, device=device)
        positions = torch.tensor(chosen, dtype=torch.int64, device=device)
        parts.append(score(logits_of(positions), targets, top=plan.top_k))
    return _joined(parts)


def _joined(parts: Sequence[Scores]) -> Scores:
    def joined(pieces: Sequence[Tensor | None]) -> Tensor | None:
        found = [piece for piece in pieces if piece is not None]
        return torch.cat(found) if found else None

    return Scores(
        torch.cat([part.values for part in parts]),
        joined([part.alternative_values for part in parts]),
        joined([part.alternative_ids for part in parts]),
    )

# SPDX-License-Identifier: MIT
"""Logprobs, of the logits as the model gave them: before penalties, bias, masks and temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import frozen
from torch import Tensor

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

    def each(self, change: Callable[[Tensor], Tensor]) -> Scores:
        """Apply a change to every tensor there is."""
        values, ids = self.alternative_values, self.alternative_ids
        return Scores(
            change(self.values),
            None if values is None else change(values),
            None if ids is None else change(ids),
        )


def score(logits: Tensor, targets: Tensor, *, top: int) -> Scores:
    """Score targets int64 [n] by logits [n, vocab], with `top` alternatives."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if not top:
        return Scores(values)
    best = torch.topk(logprobs, min(max(top, SELECTED), logprobs.shape[-1]), dim=-1)
    return Scores(values, best.values[:, :top], best.indices[:, :top])


def score_hidden(
    hidden: Tensor, targets: Tensor, *, head: Callable[[Tensor], Tensor], vocab: int, top: int
) -> Scores:
    """Score targets int64 [n] by the logits that `head` gives of hidden states [n, hidden].

    The logits of a long prompt would not fit into memory at once; a bounded part of them is held.
    """
    step = max(1, CHUNK_BYTES // (4 * vocab))
    parts = [
        score(head(hidden[at : at + step]), targets[at : at + step], top=top)
        for at in range(0, len(targets), step)
    ]
    return parts[0] if len(parts) == 1 else _joined(parts)


def spread(scores: Scores, rows: Tensor, *, num_rows: int) -> Scores:
    """Give scores of some rows, int64 [n], a place among all; the other rows hold zeros."""

    def wide(part: Tensor) -> Tensor:
        return part.new_zeros(num_rows, *part.shape[1:]).index_copy_(0, rows, part)

    return scores.each(wide)


def _joined(parts: Sequence[Scores]) -> Scores:
    def joined(pieces: Sequence[Tensor | None]) -> Tensor | None:
        found = [piece for piece in pieces if piece is not None]
        return torch.cat(found) if found else None

    return Scores(
        torch.cat([part.values for part in parts]),
        joined([part.alternative_values for part in parts]),
        joined([part.alternative_ids for part in parts]),
    )

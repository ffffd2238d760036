# SPDX-License-Identifier: MIT
"""Which tokens a draw may choose: top-k, then top-p of what is left, then min-p.

All three come down to the least probability a row may draw, found among its best tokens. Tokens
that tie with the last kept one are kept too, so the outcome depends neither on the order in which a
selection leaves equals nor on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

# On a CPU a full sort of a row costs many times the selection of its best few, and the first of
# these widths holds most nuclei; elsewhere a sort is cheaper than to ask whether one did.
CPU_WIDTHS = (128, 2048)


@frozen(eq=False)
class Filters:
    """A row's filters, [n] each: `top_k` int64 (the vocabulary's size is off), `top_p` float64
    (1 is off), `min_p` float32 (0 is off)."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def take(self, rows: Tensor) -> Filters:
        """The filters of some rows."""
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def least_probabilities(probabilities: Tensor, filters: Filters) -> Tensor:
    """The least probability each row may draw, [n, 1], of probabilities float32 [n, vocab]."""
    count, vocab = probabilities.shape
    least = probabilities.new_empty(count, 1)
    rest = torch.arange(count, device=probabilities.device)
    for width in _widths(vocab, is_cpu=probabilities.is_cpu):
        best = torch.topk(probabilities[rest], width, dim=-1).values
        least[rest], is_found = _least(best, filters.take(rest), vocab=vocab)
        if width < vocab:
            rest = rest[~is_found]
            if not len(rest):
                break
    return least


def _widths(vocab: int, *, is_cpu: bool) -> Sequence[int]:
    if not is_cpu:
        return (vocab,)
    return (*(width for width in CPU_WIDTHS if width < vocab), vocab)


def _least(best: Tensor, filters: Filters, *, vocab: int) -> tuple[Tensor, Tensor]:
    """The least probability [n, 1] by each row's best ones in descending order, float32 [n, width];
    and whether those were enough to tell, bool [n]."""
    width = best.shape[-1]
    top_k, top_p = filters.top_k.unsqueeze(-1), filters.top_p.unsqueeze(-1)
    has_k = top_k < vocab
    by_k = torch.where(has_k, best.gather(-1, top_k.clamp(max=width) - 1), 0)
    kept = torch.where(best >= by_k, best, 0).double()
    sums = kept.cumsum(dim=-1)
    wanted = top_p * torch.where(has_k, sums[:, -1:], 1)
    # The best token stays whatever top_p is.
    needed = (sums - kept < wanted).sum(dim=-1, keepdim=True).clamp(min=1)
    by_p = torch.where(top_p < 1, best.gather(-1, needed - 1), 0)
    by_min = filters.min_p.unsqueeze(-1) * best[:, :1]
    is_found = torch.where(has_k, top_k <= width, (top_p >= 1) | (sums[:, -1:] >= wanted))
    return torch.maximum(torch.maximum(by_k, by_p), by_min), is_found.squeeze(-1)

# SPDX-License-Identifier: MIT
"""Which tokens a draw may choose: top-k, top-p and min-p.

Each filter finds a threshold in every row and bars what lies below it, so tokens that tie with the
last kept one are kept too and the outcome does not depend on the order in which a sort leaves them,
nor on the other rows. All take float32 logits [n, vocab] and return new ones, -inf where barred.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A full sort of a row costs many times the selection of its best few on a CPU, and the first of
# these widths holds most nuclei; elsewhere it is cheaper than to ask whether it did.
CPU_WIDTHS = (128, 2048)


def keep_top_k(logits: Tensor, top_k: Tensor, *, widest: int) -> Tensor:
    """Keep each row's `top_k` best, int64 [n], all between 1 and `widest`."""
    best = torch.topk(logits, min(widest, logits.shape[-1]), dim=-1).values
    return _bar_below(logits, best.gather(-1, top_k.unsqueeze(-1) - 1))


def keep_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's fewest best tokens whose probability reaches `top_p`, float64 [n]."""
    probabilities = torch.softmax(logits, dim=-1)
    vocab = logits.shape[-1]
    threshold = probabilities.new_empty(len(top_p), 1)
    rest = torch.arange(len(top_p), device=logits.device)
    for width in (*CPU_WIDTHS, vocab) if logits.is_cpu else (vocab,):
        best = torch.topk(probabilities[rest], min(width, vocab), dim=-1).values
        threshold[rest], is_whole = _nucleus(best, top_p[rest])
        if width >= vocab:
            break
        rest = rest[~is_whole]
        if not len(rest):
            break
    return logits.masked_fill(probabilities < threshold, -torch.inf)


def keep_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Keep tokens at least `min_p`, float32 [n], times as likely as the row's best."""
    best = logits.amax(dim=-1, keepdim=True)
    return _bar_below(logits, best + torch.log(min_p).unsqueeze(-1))


def _nucleus(descending: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least kept probability [n, 1], and whether the nucleus ends in these columns."""
    sums = torch.cumsum(descending, dim=-1, dtype=torch.float64)
    before = sums - descending
    # The best token stays whatever top_p is; a row of NaN keeps count 1 as well.
    kept = (before < top_p.unsqueeze(-1)).sum(dim=-1, keepdim=True).clamp(min=1)
    return descending.gather(-1, kept - 1), sums[:, -1] >= top_p


def _bar_below(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold, -torch.inf)

# SPDX-License-Identifier: MIT
"""Which tokens a draw may choose: top-k, top-p and min-p.

Each filter finds a threshold in every row and bars what lies below it, so tokens that tie with the
last kept one are kept too and the outcome does not depend on the order in which a sort leaves them,
nor on the other rows. All take float32 logits [n, vocab] and return new ones, -inf where barred.
"""

from __future__ import annotations

import torch
from torch import Tensor

# On a CPU a full sort of one row costs many times the selection of its best; this many hold any
# ordinary nucleus.
NUCLEUS_WIDTH = 1024


def keep_top_k(logits: Tensor, top_k: Tensor, *, widest: int) -> Tensor:
    """Keep each row's `top_k` best, int64 [n], all between 1 and `widest`."""
    best = torch.topk(logits, min(widest, logits.shape[-1]), dim=-1).values
    return _bar_below(logits, best.gather(-1, top_k.unsqueeze(-1) - 1))


def keep_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's fewest best tokens whose probability reaches `top_p`, float64 [n]."""
    probabilities = torch.softmax(logits, dim=-1)
    width = min(NUCLEUS_WIDTH, logits.shape[-1]) if logits.is_cpu else logits.shape[-1]
    threshold, is_whole = _nucleus(torch.topk(probabilities, width, dim=-1).values, top_p)
    if logits.is_cpu and width < logits.shape[-1]:
        # Reading a mask waits for nothing here; other devices take the full width at once.
        rest = torch.nonzero(~is_whole).squeeze(-1)
        if rest.numel():
            full = torch.sort(probabilities[rest], dim=-1, descending=True).values
            threshold[rest] = _nucleus(full, top_p[rest])[0]
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

# SPDX-License-Identifier: MIT
"""Choosing one token a row: the best one, or one drawn by its probability.

Both look for the right block of the vocabulary first and then for the place in it: that is several
times faster than one argmax, or one running sum, over a whole vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
# A hair below 1: a place in a block that rounding pushed to its very end still lies in it.
BELOW_ONE = 1 - 2.0**-40


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's first best token int64 [n] and its logit [n], of logits [n, vocab].

    A NaN counts as the best value, so a row that holds one returns it.
    """
    rows, vocab = logits.shape
    whole = vocab - vocab % BLOCK
    if whole == 0:
        values, tokens = logits.max(dim=-1)
        return tokens, values
    blocks = logits[:, :whole].view(rows, whole // BLOCK, BLOCK)
    block = blocks.amax(dim=-1).argmax(dim=-1)
    chosen = blocks[torch.arange(rows, device=logits.device), block]
    values, places = chosen.max(dim=-1)
    tokens = block * BLOCK + places
    if whole == vocab:
        return tokens, values
    last_values, last_places = logits[:, whole:].max(dim=-1)
    is_better = (last_values > values) | (last_values.isnan() & ~values.isnan())
    return (
        torch.where(is_better, last_places + whole, tokens),
        torch.where(is_better, last_values, values),
    )


def drawn_tokens(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return one token a row int64 [n], drawn by weights float32 [n, vocab], and whether it could
    not be drawn, bool [n].

    `uniforms` float64 [n] in (0, 1) says where in the row's cumulated weight the token lies. Tokens
    of weight 0 are never drawn. Rows with a NaN, or without weight, return just any token.
    """
    rows, vocab = weights.shape
    if vocab % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, BLOCK - vocab % BLOCK))
    blocks = weights.view(rows, -1, BLOCK)
    # In float64 the sums round far below what a draw can tell apart, also where a device adds in
    # another order for another number of rows.
    masses = blocks.sum(dim=-1, dtype=torch.float64)
    sums = masses.cumsum(dim=-1)
    places = (uniforms * sums[:, -1]).unsqueeze(-1)
    block = torch.searchsorted(sums, places, right=True).clamp_(max=sums.shape[1] - 1)
    before = sums.gather(-1, block) - masses.gather(-1, block)
    chosen = blocks[torch.arange(rows, device=weights.device), block.squeeze(-1)]
    inner = chosen.cumsum(dim=-1, dtype=torch.float64)
    inside = torch.minimum(places - before, inner[:, -1:] * BELOW_ONE).clamp_(min=0)
    tokens = block * BLOCK + torch.searchsorted(inner, inside, right=True)
    return tokens.squeeze(-1).clamp_(max=vocab - 1), ~(sums[:, -1] > 0)

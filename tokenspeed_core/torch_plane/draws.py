# SPDX-License-Identifier: MIT
"""Choosing one token a row: the best one, or one drawn by its probability."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's first best token int64 [n] and its logit [n], of logits [n, vocab].

    A NaN counts as the best value, so a row that holds one returns it. Finding the best block first
    and then the place in it is several times faster than one argmax over a whole vocabulary.
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


def drawn_tokens(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Return one token a row int64 [n], drawn from float32 logits [n, vocab].

    `uniforms` float64 [n] in (0, 1) says where in the row's cumulated probability the token lies.
    Tokens at -inf are never drawn; a row without a finite best returns just any token.
    """
    # In float64 the sum over a vocabulary rounds far below what a draw can tell apart, also where
    # a device adds in another order for another number of rows.
    cumulated = torch.softmax(logits, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    places = (uniforms * cumulated[:, -1]).unsqueeze(-1)
    tokens = torch.searchsorted(cumulated, places, right=True).squeeze(-1)
    return tokens.clamp_(max=logits.shape[-1] - 1)

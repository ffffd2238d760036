# SPDX-License-Identifier: MIT
"""Attention of one prompt chunk.

A long one on the CPU goes a kv head at a time, over blocks of queries: the heads that share keys
are one product, keys after a block's last query are never multiplied, scores stay in the cache.
"""

from __future__ import annotations

import torch
from torch.nn import functional

BLOCK_QUERIES = 128  # 256 was slower
# Up to here one call is cheaper than many small products.
SHORT_QUERIES = 64
SHORT_CONTEXT = 128


def attend_chunk(
    queries: torch.Tensor, keys: torch.Tensor, *, values: torch.Tensor
) -> torch.Tensor:
    """Attend the last n of a row's positions to all up to their own.

    `queries` [n, heads, head_dim]; `keys`, `values` [kv_heads, positions, head_dim]; like queries.
    """
    is_short = len(queries) <= SHORT_QUERIES or keys.shape[1] <= SHORT_CONTEXT
    if queries.device.type == "cpu" and not is_short:
        return _in_blocks(queries, keys, values=values)
    group = queries.shape[1] // keys.shape[0]
    is_whole = keys.shape[1] == len(queries)
    places = torch.arange(keys.shape[1], device=queries.device)
    found = functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys.repeat_interleave(group, 0)[None],
        values.repeat_interleave(group, 0)[None],
        attn_mask=None if is_whole else places[None, :] <= places[-len(queries) :, None],
        is_causal=is_whole,
    )
    return found[0].transpose(0, 1)


def _in_blocks(queries: torch.Tensor, keys: torch.Tensor, *, values: torch.Tensor) -> torch.Tensor:
    count, _, dim = queries.shape
    kv_heads, context, _ = keys.shape
    found = torch.empty_like(queries, memory_format=torch.contiguous_format)
    # [kv_heads, heads of each, n, head_dim]
    asked = queries.view(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
    answered = found.view(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
    later = queries.new_full((BLOCK_QUERIES, BLOCK_QUERIES), float("-inf")).triu_(1)
    for head in range(kv_heads):
        head_keys, head_values = keys[head].contiguous().t(), values[head].contiguous()
        for start in range(0, count, BLOCK_QUERIES):
            stop = min(start + BLOCK_QUERIES, count)
            ahead = count - stop
            answered[head, :, start:stop] = _attend_block(
                asked[head, :, start:stop],
                head_keys[:, : context - ahead],
                values=head_values[: context - ahead],
                later=later[: stop - start, : stop - start],
            )
    return found


def _attend_block(
    queries: torch.Tensor, keys: torch.Tensor, *, values: torch.Tensor, later: torch.Tensor
) -> torch.Tensor:
    """Queries [heads, n, dim], keys [dim, m], the last n of them masked by `later` [n, n]."""
    heads, count, dim = queries.shape
    folded = queries.reshape(-1, dim)
    nothing = folded.new_empty(1)
    scores = torch.addmm(nothing, folded, keys, beta=0, alpha=dim**-0.5)
    scores.view(heads, count, -1)[:, :, -count:].add_(later)
    return torch.mm(torch.softmax(scores, dim=-1), values).view(heads, count, dim)

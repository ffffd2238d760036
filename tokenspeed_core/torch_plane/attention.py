# SPDX-License-Identifier: MIT
"""Attention over pages: prompt chunks one by one, decode rows all together.

Query heads that share a kv head become rows of one product, so keys and values are read once.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from attrs import define

from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache


@define(eq=False)
class ChunkPlan:
    """One prompt chunk: its tokens [start, stop) in the flat batch, its pages and its mask."""

    start: int
    stop: int
    page_ids: torch.Tensor
    context: int
    mask: torch.Tensor | None


@define(eq=False)
class DecodePlan:
    """All decode rows: flat index of the first, page ids [rows, pages], mask [rows, 1, context]."""

    start: int
    page_ids: torch.Tensor
    mask: torch.Tensor


@define(eq=False)
class AttentionPlan:
    """Where a forward's tokens are stored and what each row reads; the same for every layer."""

    places: tuple[torch.Tensor, torch.Tensor]
    chunks: list[ChunkPlan]
    decode: DecodePlan | None


def plan_attention(
    inputs: ForwardInputs, cache: PagedKVCache, *, dtype: torch.dtype
) -> AttentionPlan:
    """Resolve pages and masks once for all layers."""
    device = inputs.token_ids.device
    table = torch.as_tensor(inputs.block_table, device=device).long()
    lengths = torch.tensor(inputs.row_lengths, device=device)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
    slots = torch.div(inputs.positions, cache.page_size, rounding_mode="floor")
    places = (table[rows, slots], inputs.positions % cache.page_size)
    chunks, start = [], 0
    for row in range(inputs.num_extends):
        stop = start + inputs.row_lengths[row]
        chunks.append(_plan_chunk(inputs, row, span=(start, stop), pages=(table, cache.page_size)))
        start = stop
    decode = None
    if len(inputs.row_lengths) > inputs.num_extends:
        decode = _plan_decode(inputs, start, pages=(table, cache.page_size), dtype=dtype)
    return AttentionPlan(places, chunks, decode)


def _plan_chunk(
    inputs: ForwardInputs,
    row: int,
    *,
    span: tuple[int, int],
    pages: tuple[torch.Tensor, int],
) -> ChunkPlan:
    table, page_size = pages
    start, stop = span
    context = inputs.context_lengths[row]
    count = -(-context // page_size)
    mask = None
    if context != stop - start:
        first = context - (stop - start)
        queries = torch.arange(first, context, device=table.device)
        keys = torch.arange(context, device=table.device)
        mask = keys[None, :] <= queries[:, None]
    return ChunkPlan(start, stop, table[row, :count], context, mask)


def _plan_decode(
    inputs: ForwardInputs,
    start: int,
    *,
    pages: tuple[torch.Tensor, int],
    dtype: torch.dtype,
) -> DecodePlan:
    table, page_size = pages
    contexts = torch.as_tensor(np.asarray(inputs.context_lengths[inputs.num_extends :]))
    count = -(-int(contexts.max()) // page_size)
    keys = torch.arange(count * page_size)
    mask = torch.zeros((len(contexts), 1, len(keys)), dtype=dtype)
    mask.masked_fill_((keys[None, :] >= contexts[:, None])[:, None], float("-inf"))
    return DecodePlan(start, table[inputs.num_extends :, :count], mask.to(table.device))


class Attention:
    """One layer's attention; `queries` [tokens, heads, head_dim] to the same shape."""

    def __init__(self, layer: int, *, num_kv_heads: int, head_dim: int) -> None:
        self._layer = layer
        self._kv_heads = num_kv_heads
        self._scale = head_dim**-0.5

    def __call__(
        self, queries: torch.Tensor, plan: AttentionPlan, cache: PagedKVCache
    ) -> torch.Tensor:
        """Attend each token to its row's positions up to its own."""
        parts = [self._chunk(queries, chunk, cache) for chunk in plan.chunks]
        if plan.decode is not None:
            parts.append(self._decode(queries[plan.decode.start :], plan.decode, cache))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _chunk(self, queries: torch.Tensor, chunk: ChunkPlan, cache: PagedKVCache) -> torch.Tensor:
        keys, values = cache.read(self._layer, chunk.page_ids)
        keys, values = keys[:, : chunk.context], values[:, : chunk.context]
        mine = queries[chunk.start : chunk.stop].transpose(0, 1)
        group = mine.shape[0] // self._kv_heads
        found = F.scaled_dot_product_attention(
            mine[None],
            keys.repeat_interleave(group, 0)[None],
            values.repeat_interleave(group, 0)[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=self._scale,
        )
        return found[0].transpose(0, 1)

    def _decode(self, queries: torch.Tensor, plan: DecodePlan, cache: PagedKVCache) -> torch.Tensor:
        rows, pages = plan.page_ids.shape
        keys, values = cache.read(self._layer, plan.page_ids.flatten())
        keys = keys.unflatten(1, (rows, pages * cache.page_size)).transpose(0, 1).flatten(0, 1)
        values = values.unflatten(1, (rows, pages * cache.page_size)).transpose(0, 1).flatten(0, 1)
        folded = queries.unflatten(1, (self._kv_heads, -1)).flatten(0, 1)
        scores = torch.bmm(folded, keys.transpose(1, 2)).mul_(self._scale)
        scores = scores.unflatten(0, (rows, self._kv_heads)) + plan.mask[:, :, None]
        weights = torch.softmax(scores.float(), dim=-1).to(values.dtype).flatten(0, 1)
        return torch.bmm(weights, values).unflatten(0, (rows, self._kv_heads)).flatten(1, 2)

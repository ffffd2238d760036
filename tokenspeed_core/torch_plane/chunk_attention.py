# SPDX-License-Identifier: MIT
"""Attention of prompt chunks: each attends to its row's earlier positions and its own.

On the CPU queries go through in blocks that begin at multiples of `QUERY_BLOCK` in the text, each
over all keys to its block's end, written yet or not: so in bf16 a token's result does not depend on
where its prompt was cut into chunks. The query heads that share a kv head are rows of one product.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.torch_plane.kv_cache import PagedKVCache

QUERY_BLOCK = 128  # 64 and 256 were slower


@frozen(eq=False)
class Chunk:
    """Tokens [start, stop) of the flat batch, the last of `context` positions.

    `page_ids` are theirs, and null pages up to a whole number of `QUERY_BLOCK` positions at least.
    """

    start: int
    stop: int
    context: int
    page_ids: Tensor

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return self.stop - self.start


def chunk_pages(table: Tensor, context: int, *, page_size: int) -> Tensor:
    """A row's page ids, as a Chunk has them, from its row of the block table."""
    used = table[: -(-context // page_size)]
    blocks = -(-context // QUERY_BLOCK)
    return functional.pad(used, (0, -(-blocks * QUERY_BLOCK // page_size) - len(used)))


class ChunkAttention:
    """Prompt chunks' attention over one cache, by heads of one number and kind."""

    def __init__(self, cache: PagedKVCache, *, num_heads: int) -> None:
        _, _, _, self._kv_heads, _, dim = cache.pages.shape
        self._cache = cache
        self._group = num_heads // self._kv_heads
        self._scale = dim**-0.5
        ones = cache.pages.new_full((QUERY_BLOCK, QUERY_BLOCK), float("-inf"))
        # What each query of a block may not see of it; a query is as many rows as it has heads.
        self._mask = ones.triu_(1).repeat_interleave(self._group, 0)

    def attend(self, layer: int, queries: Tensor, *, chunk: Chunk, out: Tensor) -> None:
        """Attend queries [length, heads, head_dim], whose keys are in their pages."""
        keys, values = self._cache.read(layer, chunk.page_ids)
        if keys.device.type == "cpu":
            # Masked, but what is there may be no number, and no weight of zero cures that.
            keys[:, chunk.context :] = 0
            values[:, chunk.context :] = 0
            self._in_blocks(queries, keys, values=values, chunk=chunk, out=out)
        else:
            self._at_once(queries, keys, values=values, chunk=chunk, out=out)

    def _in_blocks(
        self, queries: Tensor, keys: Tensor, *, values: Tensor, chunk: Chunk, out: Tensor
    ) -> None:
        by_head = (self._kv_heads, -1, keys.shape[2])
        # Scaling the few queries, not the many scores: exact where the scale is a power of two.
        scaled = queries * self._scale
        folded = scaled.unflatten(1, (self._kv_heads, self._group)).transpose(0, 1)
        target = out.unflatten(1, (self._kv_heads, self._group)).transpose(0, 1)
        first = start = chunk.context - chunk.length
        while start < chunk.context:
            base = start - start % QUERY_BLOCK
            end = base + QUERY_BLOCK
            stop = min(end, chunk.context)
            mine = slice(start - first, stop - first)
            asked = folded[:, mine].reshape(by_head)
            scores = torch.bmm(asked, keys[:, :end].transpose(1, 2))
            scores[:, :, base:].add_(
                self._mask[(start - base) * self._group : (stop - base) * self._group]
            )
            found = torch.bmm(torch.softmax(scores, -1), values[:, :end])
            target[:, mine] = found.unflatten(1, (-1, self._group))
            start = stop

    def _at_once(
        self, queries: Tensor, keys: Tensor, *, values: Tensor, chunk: Chunk, out: Tensor
    ) -> None:
        places = torch.arange(chunk.context, device=keys.device)
        # Few kernels of CUDA take both a mask and fewer kv heads; without one all scores are held.
        found = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys[None, :, : chunk.context].repeat_interleave(self._group, 1),
            values[None, :, : chunk.context].repeat_interleave(self._group, 1),
            attn_mask=places[None, :] <= places[-chunk.length :, None],
        )
        out.copy_(found[0].transpose(0, 1))

# SPDX-License-Identifier: MIT
"""Attention of decoding rows by torch: one product over the blocks of all rows of any length.

For devices and dtypes without a kernel; `host_decode` is the CPU's.

Scores are made block by block, put in rows for the softmax, and taken apart again for the product
with the values. A row's result does not depend on which rows are beside it: its blocks are the same
alone, and a place it has no block for counts exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.torch_plane.block_layout import BlockLayout, LayoutMaker, block_positions
from tokenspeed_core.torch_plane.device import placed
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache, flat_places


@frozen(eq=False)
class GatheredBlocks:
    """Where a forward's blocks come from: the rows' pages, put together for each layer.

    `page_ids` [blocks x pages a block]; `is_filled` [blocks, 1, block, 1]; `page_places`
    [rows, 2 x kv_heads], the new positions' flat places in the pages.
    """

    cache: PagedKVCache
    page_ids: Tensor
    is_filled: Tensor
    page_places: Tensor

    def store(self, layer: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Take the rows' new kv [rows, 2 x kv_heads, head_dim]; return keys and values.

        Both are [blocks x kv_heads, block, head_dim], zero wherever no row has a position.
        """
        self.cache.write(layer, kv, places=self.page_places)
        found = self.cache.pages[layer].index_select(1, self.page_ids)
        count = self.is_filled.shape[0]
        found = found.unflatten(1, (count, -1)).transpose(2, 3).flatten(3, 4)
        # Not a product with zero: what is in nobody's position may be infinite.
        keys, values = torch.where(self.is_filled, found, 0).flatten(1, 2).unbind(0)
        return keys, values


class _Scratch:
    """Memory every layer uses again, and views of it.

    `scores` [blocks x heads + 1, block] and `results` [blocks x heads + 1, head_dim] end in a row
    of zeros, which stands for the blocks a row does not have. `shares` are the groups' parts of
    `weights`.
    """

    def __init__(self, layout: BlockLayout, queries: Tensor, *, keys: Tensor) -> None:
        folded, block, dim = keys.shape
        pairs = len(layout.place)
        self.scores = queries.new_zeros(pairs + 1, block)
        self.results = queries.new_zeros(pairs + 1, dim)
        self.weights = queries.new_empty(sum(len(group.pick) for group in layout.groups), block)
        self.scores_by_block = self.scores[:-1].view(folded, -1, block)
        self.results_by_block = self.results[:-1].view(folded, -1, dim)
        parts = self.weights.split([len(group.pick) for group in layout.groups])
        self.shares = [
            part.view(*group.shape[:2], -1)
            for part, group in zip(parts, layout.groups, strict=True)
        ]


class GatheredDecoding:
    """Plans forwards by torch's operations."""

    def __init__(self, num_heads: int, cache: PagedKVCache) -> None:
        self._block = block_positions(cache.page_size)
        dtype, device = cache.pages.dtype, cache.pages.device
        self._layouts = LayoutMaker(num_heads, self._block, dtype=dtype, device=device)

    def plan(
        self,
        cache: PagedKVCache,
        start: int,
        *,
        pages: npt.NDArray[np.int32],
        lengths: Sequence[int],
    ) -> DecodeAttention:
        """Rows of `lengths` positions, the new one counted, in `pages` [rows, width].

        The first one is token `start` of the forward.
        """
        device, block, size = cache.pages.device, self._block, cache.page_size
        table, counted = placed(pages, device).long(), np.asarray(lengths, dtype=np.int64)
        newest = placed(counted - 1, device)
        own_pages = table.gather(1, (newest // size).unsqueeze(1)).squeeze(1)
        places = flat_places(cache.pages, own_pages, offsets=newest % size)
        counts = -(-counted // block)
        width = int(counts.max()) * (block // size)
        padded = functional.pad(table, (0, max(0, width - table.shape[1])))
        each = (counts * (block // size)).tolist()
        page_ids = torch.cat([padded[row, :count] for row, count in enumerate(each)])
        # Positions in their row, of every block's every place.
        positions = torch.cat([torch.arange(n * block, device=device) for n in counts.tolist()])
        ends = placed(np.repeat(counted, counts * block), device)
        is_filled = (positions < ends).view(-1, 1, block, 1)
        source = GatheredBlocks(cache, page_ids, is_filled, places)
        return DecodeAttention(start, self._layouts.make(counted), source=source)


class DecodeAttention:
    """All decode rows of one forward; `start` is the first one's index among the tokens."""

    def __init__(self, start: int, layout: BlockLayout, *, source: GatheredBlocks) -> None:
        self._start = start
        self._layout = layout
        self._source = source
        self._scratch: _Scratch | None = None

    def attend(self, layer: int, qkv: Tensor, *, out: Tensor) -> None:
        """Store new keys and values of qkv [tokens, heads + 2 x kv_heads, dim], attend to all."""
        layout, heads, dim = self._layout, out.shape[1], out.shape[2]
        queries, out = qkv[self._start :, :heads], out[self._start :]
        keys, values = self._source.store(layer, qkv[self._start :, heads:])
        if self._scratch is None:
            self._scratch = _Scratch(layout, queries, keys=keys)
        scratch = self._scratch
        asked = queries.index_select(0, layout.block_rows).view(scratch.results_by_block.shape)
        torch.bmm(asked, keys.mT, out=scratch.scores_by_block)
        weights = self._weights(scratch, scale=dim**-0.5)
        torch.bmm(weights, values, out=scratch.results_by_block)
        for group in layout.groups:
            found = scratch.results.index_select(0, group.pick).view(*group.shape, dim)
            if group.rows is None:
                torch.sum(found, 2, out=out)
            else:
                out.index_copy_(0, group.rows, found.sum(2))

    def _weights(self, scratch: _Scratch, *, scale: float) -> Tensor:
        """Softmax over each row's blocks, taken apart into [blocks x kv_heads, group, block]."""
        for group, shares in zip(self._layout.groups, scratch.shares, strict=True):
            picked = scratch.scores.index_select(0, group.pick).view(shares.shape)
            scores = torch.add(group.mask, picked, alpha=scale)
            torch._softmax(scores, -1, False, out=shares)
        weights = scratch.weights.index_select(0, self._layout.place)
        return weights.view(scratch.scores_by_block.shape)

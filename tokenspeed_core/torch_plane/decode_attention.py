# SPDX-License-Identifier: MIT
"""Attention of decoding rows: one product over the blocks of all rows, whatever their lengths.

Scores are made block by block, put in rows for the softmax, and taken apart again for the product
with the values. A row's result does not depend on which rows are beside it: its blocks are the same
alone, and a place it has no block for counts exactly zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from attrs import define, frozen
from torch.nn import functional

from tokenspeed_core.torch_plane.kv_blocks import DecodeRow, KVBlocks, block_positions
from tokenspeed_core.torch_plane.kv_cache import KEYS, VALUES, PagedKVCache

Places = tuple[torch.Tensor, torch.Tensor]


class BlockSource(Protocol):
    """Where a forward's blocks come from."""

    def store(self, layer: int, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the rows' new kv [rows, 2, kv_heads, head_dim]; return keys and values.

        Both are [blocks, kv_heads, block, head_dim], finite wherever no row has a position.
        """

    def finish(self) -> None:
        """See to it that the pages hold the new keys and values of all layers."""


@frozen(eq=False)
class KeptBlocks:
    """The rows' dense copies; `blocks` and `places` say where the new positions are in both."""

    kept: KVBlocks
    count: int
    blocks: Places
    pages: Places

    def store(self, layer: int, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append to the copies, and read those."""
        mine = self.kept.blocks[layer]
        block, offset = self.blocks
        mine[:, block, :, offset] = kv
        return mine[KEYS, : self.count], mine[VALUES, : self.count]

    def finish(self) -> None:
        """Copy the new positions of all layers into their pages at once."""
        (block, offset), (page, place) = self.blocks, self.pages
        self.kept.cache.pages[:, :, page, :, place] = self.kept.blocks[:, :, block, :, offset]


@frozen(eq=False)
class GatheredBlocks:
    """Blocks put together from pages for each layer: slower, and needs no memory of its own.

    `page_ids` [blocks x pages a block]; `is_filled` [blocks, 1, block, 1].
    """

    cache: PagedKVCache
    page_ids: torch.Tensor
    is_filled: torch.Tensor
    pages: Places

    def store(self, layer: int, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write to the pages, and read those."""
        self.cache.write(layer, kv, places=self.pages)
        found = self.cache.pages[layer].index_select(1, self.page_ids)
        count = self.is_filled.shape[0]
        found = found.view(2, count, -1, *found.shape[2:]).transpose(2, 3).flatten(3, 4)
        # Not a product with zero: what is in nobody's position may be infinite.
        keys, values = torch.where(self.is_filled, found, 0).unbind(0)
        return keys, values

    def finish(self) -> None:
        """Everything is in the pages already."""


class BlockLayout:
    """Which blocks make up which row, as indices, and the memory every layer uses again.

    `row_blocks`: blocks of each row, in order; together they are 0 to n - 1.
    """

    def __init__(
        self,
        row_blocks: Sequence[Sequence[int]],
        lengths: Sequence[int],
        *,
        block: int,
        device: torch.device,
    ) -> None:
        self.count = sum(map(len, row_blocks))
        self.deepest = max(map(len, row_blocks))
        grid = np.full((self.deepest, len(row_blocks)), self.count, dtype=np.int64)
        for row, blocks in enumerate(row_blocks):
            grid[: len(blocks), row] = blocks
        order = grid.ravel()
        taken = np.flatnonzero(order < self.count)
        places = np.empty(self.count, dtype=np.int64)
        places[order[taken]] = taken
        # With all blocks in their places already nothing needs to be picked.
        self.is_in_order = bool(np.array_equal(order, np.arange(self.count)))
        self.order = torch.from_numpy(order).to(device)
        self.places = torch.from_numpy(places).to(device)
        self.block_rows = torch.from_numpy(places % len(row_blocks)).to(device)
        positions = np.arange(self.deepest * block)
        is_beyond = positions[None, :] >= np.asarray(lengths)[:, None]
        mask = np.where(is_beyond, -np.inf, 0).astype(np.float32)
        self.mask = torch.from_numpy(mask).to(device).view(-1, 1, self.deepest, block)


@define(eq=False)
class _Scratch:
    """Blocks' scores and results (one more than there are, always zero), and the rows' scores."""

    scores: torch.Tensor
    results: torch.Tensor
    row_scores: torch.Tensor
    weights: torch.Tensor


class DecodeAttention:
    """All decode rows of one forward; `start` is the first one's index among the tokens."""

    def __init__(self, start: int, layout: BlockLayout, *, source: BlockSource) -> None:
        self.start = start
        self._layout = layout
        self._source = source
        self._scratch: _Scratch | None = None

    def attend(self, layer: int, queries: torch.Tensor, *, kv: torch.Tensor) -> torch.Tensor:
        """Store new kv [rows, 2, kv_heads, head_dim] and attend: [rows, heads, head_dim]."""
        layout = self._layout
        keys, values = self._source.store(layer, kv)
        kv_heads, block, dim = keys.shape[1:]
        scratch = self._scratch or self._allocate(queries, block)
        folded = (layout.count * kv_heads, -1)
        asked = queries.index_select(0, layout.block_rows).view(*folded, dim)
        scores = scratch.scores[: layout.count].view(*folded, block)
        torch.bmm(asked, keys.reshape(*folded, dim).transpose(1, 2), out=scores)
        weights = self._weights(scratch, scale=dim**-0.5).view(*folded, block)
        results = scratch.results[: layout.count].view(*folded, dim)
        torch.bmm(weights, values.reshape(*folded, dim), out=results)
        return self._by_row(scratch.results).sum(0)

    def finish(self) -> None:
        """Complete the pages, after the last layer."""
        self._source.finish()

    def _weights(self, scratch: _Scratch, *, scale: float) -> torch.Tensor:
        """Softmax over each row's blocks, taken apart into [blocks, heads, block]."""
        layout = self._layout
        by_row = self._by_row(scratch.scores).permute(1, 2, 0, 3)
        torch.add(layout.mask, by_row, alpha=scale, out=scratch.row_scores)
        shares = torch.softmax(scratch.row_scores.flatten(2), dim=-1)
        scratch.weights.copy_(shares.view(scratch.row_scores.shape).permute(2, 0, 1, 3))
        weights = scratch.weights.flatten(0, 1)
        return weights if layout.is_in_order else weights.index_select(0, layout.places)

    def _by_row(self, blocks: torch.Tensor) -> torch.Tensor:
        """[blocks + 1, heads, n] as [deepest, rows, heads, n], zeros where a row has no block."""
        layout = self._layout
        picked = blocks[:-1] if layout.is_in_order else blocks.index_select(0, layout.order)
        return picked.view(layout.deepest, -1, *picked.shape[1:])

    def _allocate(self, queries: torch.Tensor, block: int) -> _Scratch:
        layout = self._layout
        rows, heads, dim = queries.shape
        self._scratch = _Scratch(
            scores=queries.new_zeros(layout.count + 1, heads, block),
            results=queries.new_zeros(layout.count + 1, heads, dim),
            row_scores=layout.mask.new_empty(rows, heads, layout.deepest, block),
            weights=queries.new_empty(layout.deepest, rows, heads, block),
        )
        return self._scratch


def kept_blocks(
    kept: KVBlocks, rows: Sequence[DecodeRow], *, pages: Places
) -> tuple[BlockSource, BlockLayout] | None:
    """The rows' dense copies, brought up to date; None if there is no room for all of them."""
    held = kept.follow(rows)
    if held is None:
        return None
    lengths = [row.length for row in rows]
    layout = BlockLayout(held, lengths, block=kept.block, device=kept.blocks.device)
    newest = torch.tensor([blocks[-1] for blocks in held])
    offsets = torch.tensor([(length - 1) % kept.block for length in lengths])
    return KeptBlocks(kept, layout.count, (newest, offsets), pages), layout


def gathered_blocks(
    cache: PagedKVCache, lengths: Sequence[int], *, table: torch.Tensor, pages: Places
) -> tuple[BlockSource, BlockLayout]:
    """Blocks put together from the pages of `table` [rows, width] at every layer."""
    block, device = block_positions(cache.page_size), table.device
    pages_each = block // cache.page_size
    counts = [-(-length // block) for length in lengths]
    width = max(counts) * pages_each
    padded = functional.pad(table, (0, max(0, width - table.shape[1])))[:, :width]
    page_ids = torch.cat([padded[row, : n * pages_each] for row, n in enumerate(counts)])
    # Positions in their row, of every block's every place.
    positions = torch.cat([torch.arange(n * block, device=device) for n in counts])
    ends = torch.tensor(lengths, device=device).repeat_interleave(
        torch.tensor(counts, device=device) * block
    )
    is_filled = (positions < ends).view(-1, 1, block, 1)
    starts = np.cumsum([0, *counts]).tolist()
    blocks = [list(range(a, b)) for a, b in itertools.pairwise(starts)]
    layout = BlockLayout(blocks, lengths, block=block, device=device)
    return GatheredBlocks(cache, page_ids, is_filled, pages), layout

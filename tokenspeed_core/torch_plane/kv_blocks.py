# SPDX-License-Identifier: MIT
"""Decoding rows' keys and values, copied out of their pages into one dense run of blocks.

Reading pages at every step costs more than the attention itself, so rows that decode keep a copy:
each owns some blocks, the blocks in use are always the first ones, and one product over all of them
serves rows of any length. Pages stay the truth. A row whose copy is not of exactly the positions it
continues from (it just began, came back, or was held out of a forward) is copied from its pages
again. A block's positions beyond its row's length are zero, so nothing stale can reach a product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import define, field, frozen

from tokenspeed_core.torch_plane.kv_cache import PagedKVCache, untouched

BLOCK_POSITIONS = 64  # at least; as fast as a row's keys in one piece, and wastes little
LIMIT_BYTES = 1 << 30


def block_positions(page_size: int) -> int:
    """Positions of a block: whole pages, and at least `BLOCK_POSITIONS`."""
    return page_size * -(-BLOCK_POSITIONS // page_size)


@frozen(eq=False)
class DecodeRow:
    """A row about to decode: its place in the batch, its length with the new token, its pages."""

    slot: int
    incarnation: int
    length: int
    pages: torch.Tensor


@define(eq=False)
class _Copy:
    incarnation: int
    length: int
    blocks: list[int] = field(factory=list)


class KVBlocks:
    """`blocks` [layers, 2, capacity, kv_heads, block, head_dim], mapped and used from the front.

    Takes at most `limit_bytes`, and nothing before the first row.
    """

    def __init__(self, cache: PagedKVCache, *, limit_bytes: int = LIMIT_BYTES) -> None:
        layers, _, _, kv_heads, page_size, head_dim = cache.pages.shape
        self.block = block_positions(page_size)
        each = 2 * layers * kv_heads * self.block * head_dim * cache.pages.itemsize
        self.cache = cache
        shape = (layers, 2, limit_bytes // each, kv_heads, self.block, head_dim)
        self.blocks = untouched(shape, dtype=cache.pages.dtype, device=cache.pages.device)
        self._copies: dict[int, _Copy] = {}
        self._in_use = 0

    def follow(self, rows: Sequence[DecodeRow]) -> list[list[int]] | None:
        """Blocks of each row, holding all but its newest position; None if they cannot all fit."""
        if sum(self._count(row.length) for row in rows) > self.blocks.shape[2]:
            self._copies.clear()
            self._in_use = 0
            return None
        self._drop_others(rows)
        begun = [row for row in rows if row.slot not in self._copies]
        for row in begun:
            self._copies[row.slot] = _Copy(row.incarnation, row.length)
        self._grow(rows)
        for row in begun:
            self._fill(row)
        for row in rows:
            self._copies[row.slot].length = row.length
        return [self._copies[row.slot].blocks for row in rows]

    def _count(self, length: int) -> int:
        return -(-length // self.block)

    def _drop_others(self, rows: Sequence[DecodeRow]) -> None:
        """Forget every copy that none of the rows continues, and close the gaps."""
        continued = {}
        for row in rows:
            copy = self._copies.get(row.slot)
            if copy and (copy.incarnation, copy.length + 1) == (row.incarnation, row.length):
                continued[row.slot] = copy
        if len(continued) == len(self._copies):
            return
        self._copies = continued
        kept = sum(len(copy.blocks) for copy in continued.values())
        used = {block for copy in continued.values() for block in copy.blocks}
        gaps = [block for block in range(kept) if block not in used]
        beyond = sorted(block for block in used if block >= kept)
        self._in_use = kept
        if gaps:
            moved = dict(zip(beyond, gaps, strict=True))
            self.blocks[:, :, gaps] = self.blocks[:, :, beyond]
            for copy in continued.values():
                copy.blocks = [moved.get(block, block) for block in copy.blocks]

    def _grow(self, rows: Sequence[DecodeRow]) -> None:
        """Give every row the blocks its length needs: all first ones, then all second ones..."""
        first = self._in_use
        for number in range(max(self._count(row.length) for row in rows)):
            for row in rows:
                blocks = self._copies[row.slot].blocks
                if len(blocks) == number < self._count(row.length):
                    blocks.append(self._in_use)
                    self._in_use += 1
        self.blocks[:, :, first : self._in_use] = 0

    def _fill(self, row: DecodeRow) -> None:
        cached = row.length - 1
        blocks = self._copies[row.slot].blocks
        pages = row.pages[: -(-cached // self.cache.page_size)]
        found = self.cache.pages.index_select(2, pages).transpose(2, 3).flatten(3, 4)
        for number, block in enumerate(blocks):
            part = found[:, :, :, number * self.block : min((number + 1) * self.block, cached)]
            self.blocks[:, :, block, :, : part.shape[3]] = part

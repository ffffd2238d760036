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

from attrs import define, field, frozen
from torch import Tensor

from tokenspeed_core.torch_plane.host_memory import mapped_zeros
from tokenspeed_core.torch_plane.kv_cache import KEYS, VALUES, PagedKVCache

BLOCK_POSITIONS = 64  # at least; as fast as a row's keys in one piece, and wastes little
FIRST_BLOCKS = 16


def block_positions(page_size: int) -> int:
    """Positions of a block: whole pages, and at least `BLOCK_POSITIONS`."""
    return page_size * -(-BLOCK_POSITIONS // page_size)


@frozen(eq=False)
class DecodeRows:
    """Rows about to decode: their lengths with the new token, their pages [rows, width]."""

    slots: Sequence[int]
    incarnations: Sequence[int]
    lengths: Sequence[int]
    pages: Tensor


@frozen(eq=False)
class LayerBlocks:
    """One layer's blocks: `flat` [all positions of all heads, head_dim], what `flat_places` says.

    `keys` and `values` [blocks x kv_heads, block, head_dim].
    """

    flat: Tensor
    keys: Tensor
    values: Tensor


@define(eq=False)
class _Copy:
    incarnation: int
    length: int
    blocks: list[int] = field(factory=list)


class KVBlocks:
    """`blocks` [layers, 2, capacity, kv_heads, block, head_dim], used from the front.

    Grows by doubling as rows need it, to at most `limit_bytes`, or the size of the cache itself.
    """

    def __init__(self, cache: PagedKVCache, *, limit_bytes: int | None = None) -> None:
        self.cache = cache
        self.block = block_positions(cache.page_size)
        self._allocate(0)
        block_bytes = cache.bytes_per_page * self.block // cache.page_size
        limit = cache.pages.nbytes if limit_bytes is None else limit_bytes
        self._limit = max(1, limit // block_bytes)
        self._copies: dict[int, _Copy] = {}
        self._in_use = 0

    def follow(self, rows: DecodeRows) -> list[list[int]] | None:
        """Blocks of each row, holding all but its newest position; None if they cannot all fit."""
        if not self._are_continued(rows):
            if sum(map(self._count, rows.lengths)) > self._limit:
                self._copies.clear()
                self._in_use = 0
                return None
            self._rearrange(rows)
        copies = [self._copies[slot] for slot in rows.slots]
        for copy, length in zip(copies, rows.lengths, strict=True):
            copy.length = length
        return [copy.blocks for copy in copies]

    def _count(self, length: int) -> int:
        return -(-length // self.block)

    def _continued(self, rows: DecodeRows) -> dict[int, _Copy]:
        """The copies, by slot, that end just before their row's new position."""
        continued = {}
        for slot, incarnation, length in zip(
            rows.slots, rows.incarnations, rows.lengths, strict=True
        ):
            copy = self._copies.get(slot)
            if copy is not None and (copy.incarnation, copy.length + 1) == (incarnation, length):
                continued[slot] = copy
        return continued

    def _are_continued(self, rows: DecodeRows) -> bool:
        """Whether every row, and no other, has its copy, with room for the new position."""
        continued = self._continued(rows)
        return len(continued) == len(rows.slots) == len(self._copies) and all(
            length <= len(continued[slot].blocks) * self.block
            for slot, length in zip(rows.slots, rows.lengths, strict=True)
        )

    def _rearrange(self, rows: DecodeRows) -> None:
        self._keep_only(self._continued(rows))
        begun = []
        for number, slot in enumerate(rows.slots):
            if slot not in self._copies:
                self._copies[slot] = _Copy(rows.incarnations[number], rows.lengths[number])
                begun.append(number)
        self._grow(rows)
        for number in begun:
            self._fill(self._copies[rows.slots[number]], rows.pages[number])

    def _keep_only(self, continued: dict[int, _Copy]) -> None:
        """Forget every other copy, and close the gaps."""
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

    def _grow(self, rows: DecodeRows) -> None:
        """Give every row the blocks its length needs: all first ones, then all second ones..."""
        first = self._in_use
        counts = [self._count(length) for length in rows.lengths]
        for number in range(max(counts)):
            for slot, count in zip(rows.slots, counts, strict=True):
                blocks = self._copies[slot].blocks
                if len(blocks) == number < count:
                    blocks.append(self._in_use)
                    self._in_use += 1
        self._reserve(first)
        self.blocks[:, :, first : self._in_use] = 0

    def _reserve(self, filled: int) -> None:
        """Make room for the blocks in use; the first `filled` ones keep their contents."""
        capacity = self.blocks.shape[2]
        if self._in_use > capacity:
            old = self.blocks
            wanted = max(FIRST_BLOCKS, 2 * capacity, self._in_use)
            self._allocate(min(wanted, self._limit))
            self.blocks[:, :, :filled] = old[:, :, :filled]

    def _allocate(self, capacity: int) -> None:
        layers, _, _, kv_heads, _, head_dim = self.cache.pages.shape
        shape = (layers, 2, capacity, kv_heads, self.block, head_dim)
        self.blocks = mapped_zeros(shape, self.cache.pages.dtype)
        self.flat = self.blocks.flatten(1, 4)
        self.layers = [
            LayerBlocks(mine.flatten(0, 3), mine[KEYS].flatten(0, 1), mine[VALUES].flatten(0, 1))
            for mine in self.blocks.unbind(0)
        ]

    def _fill(self, copy: _Copy, pages: Tensor) -> None:
        cached = copy.length - 1
        pages = pages[: -(-cached // self.cache.page_size)]
        found = self.cache.pages.index_select(2, pages).transpose(2, 3).flatten(3, 4)
        for number, block in enumerate(copy.blocks):
            part = found[:, :, :, number * self.block : min((number + 1) * self.block, cached)]
            self.blocks[:, :, block, :, : part.shape[3]] = part

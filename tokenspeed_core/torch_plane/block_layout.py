# SPDX-License-Identifier: MIT
"""Which blocks make up which decoding row, as indices for a forward's every layer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, frozen
from torch import Tensor

from tokenspeed_core.torch_plane.device import placed

Ints = npt.NDArray[np.int64]
BLOCK_POSITIONS = 64  # at least; as fast as a row's keys in one piece, and wastes little


def block_positions(page_size: int) -> int:
    """Positions of a block: whole pages, and at least `BLOCK_POSITIONS`."""
    return page_size * -(-BLOCK_POSITIONS // page_size)


@frozen(eq=False)
class RowGroup:
    """Rows of about the same number of blocks, padded to the most one of them has.

    `shape` is (rows, heads, depth). `pick` [rows x heads x depth] indexes the (block, head) pairs,
    one beyond the last where a row has no more blocks. `mask` [rows, 1, depth x block] is added to
    the scores. `rows` are their places among all rows; None for all rows in order.
    """

    shape: tuple[int, int, int]
    pick: Tensor
    mask: Tensor
    rows: Tensor | None


@define(eq=False)
class BlockLayout:
    """Whose each block is, `block_rows` [blocks], and the rows' groups.

    `place` [blocks x heads] says where, in all groups' picks one after another, a pair is.
    """

    block_rows: Tensor
    place: Tensor
    groups: list[RowGroup]


class LayoutMaker:
    """Makes layouts, and only new masks while rows keep their numbers of blocks."""

    def __init__(
        self, num_heads: int, block: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._heads = num_heads
        self._block = block
        self._none = torch.empty(0, dtype=dtype, device=device)
        self._depths = np.zeros(0, dtype=np.int64)
        self._layout: BlockLayout | None = None

    def make(self, lengths: Ints) -> BlockLayout:
        """Lay out rows of so many positions each, whose blocks are one after another."""
        ends = self._tensor(lengths)
        depths, last = -(-lengths // self._block), self._layout
        if last is None or not np.array_equal(depths, self._depths):
            self._depths = depths
            last = self._arrange(depths, ends)
        else:
            last.groups = [self._with_mask(group, ends) for group in last.groups]
        self._layout = last
        return last

    def _arrange(self, depths: Ints, ends: Tensor) -> BlockLayout:
        count = int(depths.sum())
        firsts = np.cumsum(depths) - depths
        place = np.empty((count, self._heads), dtype=np.int64)
        groups, start = [], 0
        for rows in _of_similar_depth(depths):
            depth = int(depths[rows].max())
            steps = np.arange(depth)[None, :]
            grid = np.where(steps < depths[rows, None], firsts[rows, None] + steps, count)
            pick = self._pick(grid, place, start=start)
            is_all = len(rows) == len(depths)
            group = RowGroup(
                (len(rows), self._heads, depth),
                self._tensor(pick),
                mask=self._none,
                rows=None if is_all else self._tensor(rows),
            )
            groups.append(self._with_mask(group, ends))
            start += pick.size
        owners = np.repeat(np.arange(len(depths)), depths)
        return BlockLayout(self._tensor(owners), self._tensor(place.ravel()), groups)

    def _pick(self, grid: Ints, place: Ints, *, start: int) -> Ints:
        """Indices of (block, head) pairs by row, head, depth; note in `place` where they went."""
        heads = np.arange(self._heads)[None, :, None]
        pick = grid[:, None, :] * self._heads + heads
        count = len(place)
        pick[np.broadcast_to(grid[:, None, :] == count, pick.shape)] = count * self._heads
        flat = pick.ravel()
        is_block = flat < count * self._heads
        place.reshape(-1)[flat[is_block]] = start + np.flatnonzero(is_block)
        return flat

    def _with_mask(self, group: RowGroup, ends: Tensor) -> RowGroup:
        rows, _, depth = group.shape
        mine = ends if group.rows is None else ends[group.rows]
        positions = torch.arange(depth * self._block, device=ends.device)
        mask = self._none.new_zeros(rows, depth * self._block)
        mask.masked_fill_(positions >= mine[:, None], float("-inf"))
        return RowGroup(group.shape, group.pick, mask[:, None], group.rows)

    def _tensor(self, values: Ints) -> Tensor:
        return placed(values, self._none.device)


def _of_similar_depth(depths: Ints) -> list[Ints]:
    """Rows in groups none of which is padded to more than twice its shallowest row."""
    if depths.max() <= 2 * depths.min():
        return [np.arange(len(depths))]
    classes = np.ceil(np.log2(depths)).astype(np.int64)
    return [np.flatnonzero(classes == number) for number in np.unique(classes)]

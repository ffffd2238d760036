# SPDX-License-Identifier: MIT
"""Attention over pages: prompt chunks one by one, decode rows all together."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from attrs import define
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.torch_plane.block_layout import LayoutMaker
from tokenspeed_core.torch_plane.chunk_attention import Chunk, ChunkAttention, chunk_pages
from tokenspeed_core.torch_plane.decode_attention import (
    DecodeAttention,
    GatheredBlocks,
    KeptBlocks,
)
from tokenspeed_core.torch_plane.device import placed
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_blocks import DecodeRows, KVBlocks, block_positions
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache, flat_places


@define(eq=False)
class AttentionPlan:
    """What each row reads and where its keys go; made once, for all layers.

    The chunks' tokens come first; `places` are theirs in the cache.
    """

    cache: PagedKVCache
    places: Tensor
    chunks: list[Chunk]
    chunk_attention: ChunkAttention
    decode: DecodeAttention | None

    def attend(self, layer: int, qkv: Tensor, *, out: Tensor) -> None:
        """Store new keys and values, attend each token to its row's positions up to its own.

        qkv [tokens, heads + 2 x kv_heads, head_dim] to out [tokens, heads, head_dim].
        """
        heads = out.shape[1]
        queries, kv = qkv[:, :heads], qkv[:, heads:]
        if not self.chunks and self.decode is not None:
            self.decode.attend(layer, queries, kv=kv, out=out)
            return
        self.cache.write(layer, kv[: len(self.places)], places=self.places)
        for chunk in self.chunks:
            mine = slice(chunk.start, chunk.stop)
            self.chunk_attention.attend(layer, queries[mine], chunk=chunk, out=out[mine])
        if self.decode is not None:
            mine = slice(self.decode.start, None)
            self.decode.attend(layer, queries[mine], kv=kv[mine], out=out[mine])

    def finish(self) -> None:
        """Complete the pages, after the last layer."""
        if self.decode is not None:
            self.decode.finish()


class AttentionPlanner:
    """Plans forwards over one cache; keeps decoding rows' copies on the CPU."""

    def __init__(
        self, cache: PagedKVCache, *, num_heads: int, copies_limit_bytes: int | None = None
    ) -> None:
        self.cache = cache
        # A GPU gathers pages fast enough to do without a second copy.
        on_cpu = cache.pages.device.type == "cpu"
        self._kept = KVBlocks(cache, limit_bytes=copies_limit_bytes) if on_cpu else None
        self._chunks = ChunkAttention(cache, num_heads=num_heads)
        block = block_positions(cache.page_size)
        self._layouts = LayoutMaker(num_heads, block, like=cache.pages)

    def plan(self, inputs: ForwardInputs) -> AttentionPlan:
        """Resolve pages, blocks and masks of one forward."""
        table = placed(inputs.block_table, self.cache.pages.device).long()
        lengths = np.asarray(inputs.row_lengths)
        rows = placed(np.repeat(np.arange(len(lengths)), lengths), table.device)
        size = self.cache.page_size
        pages = table[rows, inputs.positions // size]
        places = flat_places(self.cache.pages, pages, offsets=inputs.positions % size)
        bounds = [0, *itertools.accumulate(inputs.row_lengths[: inputs.num_extends])]
        chunks = [
            Chunk(start, stop, context, chunk_pages(row, context, page_size=size))
            for (start, stop), context, row in zip(
                itertools.pairwise(bounds), inputs.context_lengths, table, strict=False
            )
        ]
        decode = None
        if inputs.num_extends < len(inputs.row_lengths):
            decode = self._plan_decode(inputs, table, places=places[bounds[-1] :])
        return AttentionPlan(self.cache, places[: bounds[-1]], chunks, self._chunks, decode)

    def _plan_decode(
        self, inputs: ForwardInputs, table: Tensor, *, places: Tensor
    ) -> DecodeAttention:
        first = inputs.num_extends
        assert len(places) == len(inputs.row_lengths) - first, "a decode row feeds one token"
        rows = DecodeRows(
            inputs.slots[first:],
            inputs.incarnations[first:],
            inputs.context_lengths[first:],
            table[first:],
        )
        start = sum(inputs.row_lengths[:first])
        return self._kept_decode(rows, start, places=places) or self._gathered_decode(
            rows, start, places=places
        )

    def _kept_decode(
        self, rows: DecodeRows, start: int, *, places: Tensor
    ) -> DecodeAttention | None:
        """Over the rows' dense copies, brought up to date; None if there is no room for all."""
        held = None if self._kept is None else self._kept.follow(rows)
        if self._kept is None or held is None:
            return None
        layout = self._layouts.make(held, rows.lengths)
        newest = torch.tensor([blocks[-1] for blocks in held])
        offsets = (torch.tensor(rows.lengths) - 1) % self._kept.block
        mine = flat_places(self._kept.blocks, newest, offsets=offsets)
        source = KeptBlocks(self._kept, len(layout.block_rows), places=mine, page_places=places)
        return DecodeAttention(start, layout, source=source)

    def _gathered_decode(self, rows: DecodeRows, start: int, *, places: Tensor) -> DecodeAttention:
        """Over blocks put together from the rows' pages at every layer."""
        size, device = self.cache.page_size, places.device
        block = block_positions(size)
        counts = [-(-length // block) for length in rows.lengths]
        width = max(counts) * (block // size)
        padded = functional.pad(rows.pages, (0, max(0, width - rows.pages.shape[1])))[:, :width]
        page_ids = torch.cat([padded[row, : n * block // size] for row, n in enumerate(counts)])
        # Positions in their row, of every block's every place.
        positions = torch.cat([torch.arange(n * block, device=device) for n in counts])
        ends = placed(np.repeat(rows.lengths, np.array(counts) * block), device)
        is_filled = (positions < ends).view(-1, 1, block, 1)
        bounds = itertools.pairwise([0, *itertools.accumulate(counts)])
        layout = self._layouts.make([list(range(a, b)) for a, b in bounds], rows.lengths)
        source = GatheredBlocks(self.cache, page_ids, is_filled, places)
        return DecodeAttention(start, layout, source=source)

# SPDX-License-Identifier: MIT
"""Attention over pages: prompt chunks one by one, decode rows all together."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import torch
from attrs import define
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.torch_plane.block_layout import LayoutMaker, block_positions
from tokenspeed_core.torch_plane.chunk_attention import Chunk, ChunkAttention, chunk_pages
from tokenspeed_core.torch_plane.decode_attention import DecodeAttention, GatheredBlocks
from tokenspeed_core.torch_plane.device import placed
from tokenspeed_core.torch_plane.host_decode import HostDecode, HostDecoding
from tokenspeed_core.torch_plane.inputs import ForwardInputs
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
    decode: DecodeAttention | HostDecode | None

    def attend(self, layer: int, qkv: Tensor, *, out: Tensor) -> None:
        """Store new keys and values, attend each token to its row's positions up to its own.

        qkv [tokens, heads + 2 x kv_heads, head_dim] to out [tokens, heads, head_dim].
        """
        if self.chunks:
            heads = out.shape[1]
            self.cache.write(layer, qkv[: len(self.places), heads:], places=self.places)
            for chunk in self.chunks:
                mine = slice(chunk.start, chunk.stop)
                queries = qkv[mine, :heads]
                self.chunk_attention.attend(layer, queries, chunk=chunk, out=out[mine])
        if self.decode is not None:
            self.decode.attend(layer, qkv, out=out)


class AttentionPlanner:
    """Plans forwards over one cache; by `host`, where there is a kernel, those that decode."""

    def __init__(
        self, cache: PagedKVCache, *, num_heads: int, host: HostDecoding | None = None
    ) -> None:
        self.cache = cache
        self._chunks = ChunkAttention(cache, num_heads=num_heads)
        self._host = host
        self._block = block_positions(cache.page_size)
        self._layouts = LayoutMaker(num_heads, self._block, like=cache.pages)

    def plan(self, inputs: ForwardInputs) -> AttentionPlan:
        """Resolve pages, blocks and masks of one forward."""
        bounds = [0, *itertools.accumulate(inputs.row_lengths[: inputs.num_extends])]
        places, chunks = self._chunk_plan(inputs, bounds)
        decode = None
        if inputs.num_extends < len(inputs.row_lengths):
            decode = self._decode_plan(inputs, start=bounds[-1])
        return AttentionPlan(self.cache, places, chunks, self._chunks, decode)

    def _chunk_plan(self, inputs: ForwardInputs, bounds: list[int]) -> tuple[Tensor, list[Chunk]]:
        count, size = inputs.num_extends, self.cache.page_size
        if not count:
            return inputs.positions[:0], []
        table = placed(inputs.block_table[:count], self.cache.pages.device).long()
        places = self._places(
            table, np.asarray(inputs.row_lengths[:count]), positions=inputs.positions[: bounds[-1]]
        )
        chunks = [
            Chunk(start, stop, context, chunk_pages(row, context, page_size=size))
            for (start, stop), context, row in zip(
                itertools.pairwise(bounds), inputs.context_lengths, table, strict=False
            )
        ]
        return places, chunks

    def _places(
        self, table: Tensor, lengths: npt.NDArray[np.int64], *, positions: Tensor
    ) -> Tensor:
        """Flat places in the pages of each row's new positions."""
        rows = placed(np.repeat(np.arange(len(lengths)), lengths), table.device)
        size = self.cache.page_size
        pages = table[rows, positions // size]
        return flat_places(self.cache.pages, pages, offsets=positions % size)

    def _decode_plan(self, inputs: ForwardInputs, *, start: int) -> DecodeAttention | HostDecode:
        first = inputs.num_extends
        assert set(inputs.row_lengths[first:]) == {1}, "a decode row feeds one token"
        pages, lengths = inputs.block_table[first:], inputs.context_lengths[first:]
        if self._host is not None:
            return self._host.plan(self.cache, start, pages=pages, lengths=lengths)
        return self._gathered(inputs, start, pages=pages, lengths=lengths)

    def _gathered(
        self,
        inputs: ForwardInputs,
        start: int,
        *,
        pages: npt.NDArray[np.int32],
        lengths: list[int],
    ) -> DecodeAttention:
        """Over blocks put together from the rows' pages at every layer."""
        device, block = self.cache.pages.device, self._block
        table = placed(pages, device).long()
        ones = np.ones(len(lengths), dtype=np.int64)
        places = self._places(table, ones, positions=inputs.positions[start:])
        counts = [-(-length // block) for length in lengths]
        each = block // self.cache.page_size
        padded = functional.pad(table, (0, max(0, max(counts) * each - table.shape[1])))
        page_ids = torch.cat([padded[row, : count * each] for row, count in enumerate(counts)])
        # Positions in their row, of every block's every place.
        positions = torch.cat([torch.arange(count * block, device=device) for count in counts])
        ends = placed(np.repeat(lengths, np.array(counts) * block), device)
        is_filled = (positions < ends).view(-1, 1, block, 1)
        bounds = itertools.pairwise([0, *itertools.accumulate(counts)])
        layout = self._layouts.make([list(range(a, b)) for a, b in bounds], lengths)
        source = GatheredBlocks(self.cache, page_ids, is_filled, places)
        return DecodeAttention(start, layout, source=source)

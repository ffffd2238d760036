# SPDX-License-Identifier: MIT
"""Attention over pages: prompt chunks one by one, decode rows all together."""

from __future__ import annotations

import itertools

import numpy as np
from attrs import define
from torch import Tensor

from tokenspeed_core.torch_plane.chunk_attention import Chunk, ChunkAttention, chunk_pages
from tokenspeed_core.torch_plane.decode_attention import DecodeAttention, GatheredDecoding
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
    """Plans forwards over one cache; `decoding` is the kernel for rows that decode, if any is."""

    def __init__(
        self, cache: PagedKVCache, *, num_heads: int, decoding: HostDecoding | None
    ) -> None:
        self.cache = cache
        self._chunks = ChunkAttention(cache, num_heads=num_heads)
        self._decoding = decoding or GatheredDecoding(num_heads, cache)

    def plan(self, inputs: ForwardInputs) -> AttentionPlan:
        """Resolve pages, places and masks of one forward."""
        first = inputs.num_extends
        bounds = [0, *itertools.accumulate(inputs.row_lengths[:first])]
        places, chunks = self._plan_chunks(inputs, bounds)
        decode = None
        if first < len(inputs.row_lengths):
            assert set(inputs.row_lengths[first:]) == {1}, "a decode row feeds one token"
            decode = self._decoding.plan(
                self.cache,
                bounds[-1],
                pages=inputs.block_table[first:],
                lengths=inputs.context_lengths[first:],
            )
        return AttentionPlan(self.cache, places, chunks, self._chunks, decode)

    def _plan_chunks(self, inputs: ForwardInputs, bounds: list[int]) -> tuple[Tensor, list[Chunk]]:
        """The places in the cache of the chunks' tokens, and the chunks."""
        count, size = inputs.num_extends, self.cache.page_size
        positions = inputs.positions[: bounds[-1]]
        if not count:
            return positions, []
        table = placed(inputs.block_table[:count], positions.device).long()
        rows = placed(np.repeat(np.arange(count), inputs.row_lengths[:count]), positions.device)
        pages = table[rows, positions // size]
        places = flat_places(self.cache.pages, pages, offsets=positions % size)
        chunks = [
            Chunk(start, stop, context, chunk_pages(row, context, page_size=size))
            for (start, stop), context, row in zip(
                itertools.pairwise(bounds), inputs.context_lengths, table, strict=False
            )
        ]
        return places, chunks

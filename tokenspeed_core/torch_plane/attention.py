# SPDX-License-Identifier: MIT
"""Attention over pages: prompt chunks one by one, decode rows all together."""

from __future__ import annotations

import torch
from attrs import define

from tokenspeed_core.torch_plane.chunk_attention import attend_chunk
from tokenspeed_core.torch_plane.decode_attention import (
    DecodeAttention,
    Places,
    gathered_blocks,
    kept_blocks,
)
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_blocks import LIMIT_BYTES, DecodeRow, KVBlocks
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache


@define(eq=False)
class ChunkPlan:
    """One prompt chunk: its tokens [start, stop) in the flat batch, and what is before them."""

    start: int
    stop: int
    page_ids: torch.Tensor
    context: int

    @property
    def has_prefix(self) -> bool:
        """Whether keys of earlier forwards are attended too."""
        return self.context != self.stop - self.start


@define(eq=False)
class AttentionPlan:
    """What each row reads and where its keys go; made once, for all layers.

    The chunks' tokens come first; `places` are theirs.
    """

    places: Places
    chunks: list[ChunkPlan]
    decode: DecodeAttention | None

    def finish(self) -> None:
        """Complete the pages, after the last layer."""
        if self.decode is not None:
            self.decode.finish()


class AttentionPlanner:
    """Plans forwards over one cache; keeps decoding rows' copies on the CPU."""

    def __init__(self, cache: PagedKVCache, *, copies_limit_bytes: int = LIMIT_BYTES) -> None:
        self.cache = cache
        # A GPU gathers pages fast enough to do without a second copy.
        on_cpu = cache.pages.device.type == "cpu"
        self._kept = KVBlocks(cache, limit_bytes=copies_limit_bytes) if on_cpu else None

    def plan(self, inputs: ForwardInputs) -> AttentionPlan:
        """Resolve pages, blocks and masks of one forward."""
        device, size = inputs.token_ids.device, self.cache.page_size
        table = torch.as_tensor(inputs.block_table, device=device).long()
        lengths = torch.tensor(inputs.row_lengths, device=device)
        rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
        slots = torch.div(inputs.positions, size, rounding_mode="floor")
        pages, offsets = table[rows, slots], inputs.positions % size
        chunks, start = [], 0
        for row in range(inputs.num_extends):
            stop = start + inputs.row_lengths[row]
            context = inputs.context_lengths[row]
            chunks.append(ChunkPlan(start, stop, table[row, : -(-context // size)], context))
            start = stop
        decode = None
        if inputs.num_extends < len(inputs.row_lengths):
            mine = (pages[start:], offsets[start:])
            decode = self._plan_decode(inputs, start, table=table, places=mine)
        return AttentionPlan((pages[:start], offsets[:start]), chunks, decode)

    def _plan_decode(
        self, inputs: ForwardInputs, start: int, *, table: torch.Tensor, places: Places
    ) -> DecodeAttention:
        first = inputs.num_extends
        lengths = inputs.context_lengths[first:]
        assert set(inputs.row_lengths[first:]) == {1}, "a decode row feeds one token"
        found = None
        if self._kept is not None:
            rows = [
                DecodeRow(inputs.slots[row], inputs.incarnations[row], length, table[row])
                for row, length in enumerate(lengths, first)
            ]
            found = kept_blocks(self._kept, rows, pages=places)
        if found is None:
            found = gathered_blocks(self.cache, lengths, table=table[first:], pages=places)
        source, layout = found
        return DecodeAttention(start, layout, source=source)


def attend(
    layer: int, qkv: torch.Tensor, *, plan: AttentionPlan, cache: PagedKVCache
) -> torch.Tensor:
    """Store new keys and values and attend each token to its row's positions up to its own.

    qkv [tokens, heads + 2 x kv_heads, head_dim] to [tokens, heads, head_dim].
    """
    kv_heads = cache.pages.shape[3]
    heads = qkv.shape[1] - 2 * kv_heads
    queries, kv = qkv[:, :heads], qkv[:, heads:].view(len(qkv), 2, kv_heads, -1)
    parts = []
    if plan.chunks:
        count = len(plan.places[0])
        cache.write(layer, kv[:count], places=plan.places)
        parts += [
            _attend_chunk(layer, queries, kv=kv, chunk=chunk, cache=cache) for chunk in plan.chunks
        ]
    if plan.decode is not None:
        start = plan.decode.start
        parts.append(plan.decode.attend(layer, queries[start:], kv=kv[start:]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_chunk(
    layer: int, queries: torch.Tensor, *, kv: torch.Tensor, chunk: ChunkPlan, cache: PagedKVCache
) -> torch.Tensor:
    mine = slice(chunk.start, chunk.stop)
    if chunk.has_prefix:
        keys, values = cache.read(layer, chunk.page_ids)
        keys, values = keys[:, : chunk.context], values[:, : chunk.context]
    else:
        keys, values = kv[mine].permute(1, 2, 0, 3).unbind(0)
    return attend_chunk(queries[mine], keys, values=values)

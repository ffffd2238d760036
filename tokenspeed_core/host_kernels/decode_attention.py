# SPDX-License-Identifier: MIT
"""Attention of rows that decode, straight from the pages of the KV cache.

A thread takes some (row, kv head) pairs, whole: scores of all positions, softmax in float32, and
the weighted values. It stores the row's new key and value first, so nothing waits for anything.
"""

from __future__ import annotations

from functools import cache

from tokenspeed_core.host_kernels.head_passes import (
    AttentionShape,
    beginning,
    scoring,
    to_weights,
    weighting,
)
from tokenspeed_core.host_kernels.team import Kernel, arguments_at, own_number, own_share
from tokenspeed_core.host_kernels.vectors import (
    FLOAT32,
    ElementType,
    int32_at,
    int64_at,
    reader,
    writer,
)

_read = reader(FLOAT32)


@cache
def decode_attention(shape: AttentionShape, kind: ElementType) -> Kernel:
    """The kernel for one shape. Its arguments, addresses unless said otherwise:

    `qkv` [rows, heads + 2 x kv_heads, dim] and `out` [rows, heads, dim]; `keys`
    [pages, kv_heads, page_size, dim] and, so many elements after them, `apart`, the values;
    `tables` int32 [rows, width] page ids; `lengths` int64 [rows], the new position counted;
    `scratch` float32 [threads, size]; then the numbers rows, width, page_size, longest and size.
    """
    heads, kv_heads, dim, group = shape.heads, shape.kv_heads, shape.dim, shape.group
    nbytes, row_bytes = kind.nbytes, (heads + 2 * kv_heads) * dim * kind.nbytes
    begin, score_all, add_all = beginning(shape, kind), scoring(shape, kind), weighting(shape, kind)
    write = writer(kind)

    def attend(address: int) -> None:
        given = arguments_at(address)
        qkv, out, keys, apart, tables, lengths = given[:6]
        rows, width, page_size, pitch, size = given[7:12]
        own, own_bytes = given[6] + own_number() * size * 4, group * (2 * dim + pitch) * 4
        item, end = own_share(rows * kv_heads)
        while item < end:
            row, head = item // kv_heads, item % kv_heads
            # Of fewer threads than were asked for each has more pairs, but no more scratch.
            count = min(kv_heads - head, end - item, size * 4 // own_bytes)
            table, length = tables + row * width * 4, int64_at(lengths, row)
            pages = keys + head * page_size * dim * nbytes
            newest = int32_at(table, (length - 1) // page_size) * kv_heads * page_size
            newest = pages + (newest + (length - 1) % page_size) * dim * nbytes
            for i in range(count):
                at = newest + i * page_size * dim * nbytes
                begin(qkv + row * row_bytes, head + i, own + i * own_bytes, at, apart)
            score_all(pages, table, page_size, length, count, own, pitch)
            for i in range(count):
                for one in range(group):
                    to_weights(own + i * own_bytes + (2 * group * dim + one * pitch) * 4, length)
            add_all(pages + apart * nbytes, table, page_size, length, count, own, pitch)
            for i in range(count):
                sums, place = own + i * own_bytes, (row * heads + (head + i) * group) * dim
                for at in range(group * dim):
                    write(out, place + at, _read(sums, group * dim + at))
            item += count

    return Kernel(attend, num_arguments=12)

# SPDX-License-Identifier: MIT
"""Attention of rows that decode, straight from the pages of the KV cache.

A thread takes some (row, kv head) pairs, whole: scores of all positions, softmax in float32, and
the weighted values. It stores the row's new key and value first, so nothing waits for anything.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from attrs import frozen
from tokenspeed_core.host_kernels.exponential import exponential
from tokenspeed_core.host_kernels.team import (
    Kernel,
    arguments_at,
    compiled,
    own_number,
    own_share,
)
from tokenspeed_core.host_kernels.vectors import (
    FLOAT32,
    ElementType,
    head_vectors,
    int32_at,
    int64_at,
    reader,
    writer,
)

_read_float, _write_float = reader(FLOAT32), writer(FLOAT32)


@frozen
class AttentionShape:
    """Heads of a model or of a rank's part of it."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    def scratch(self, longest: int) -> int:
        """float32 numbers a thread needs for rows of up to so many positions."""
        return self.group * (2 * self.dim + longest)


@compiled  # type: ignore[untyped-decorator]  # numba ships no types
def _to_weights(scores: int, count: int) -> None:
    """Softmax of `count` numbers at an address, in place."""
    largest = np.float32(-np.inf)
    for i in range(count):
        largest = max(largest, _read_float(scores, i))
    total = np.float32(0)
    for i in range(count):
        weight = exponential(_read_float(scores, i) - largest)
        _write_float(scores, i, weight)
        total += weight
    share = np.float32(1) / total
    for i in range(count):
        _write_float(scores, i, _read_float(scores, i) * share)


@cache
def decode_attention(shape: AttentionShape, kind: ElementType) -> Kernel:
    """The kernel for one shape. Its arguments, addresses unless said otherwise:

    `qkv` [rows, heads + 2 x kv_heads, dim] and `out` [rows, heads, dim]; `keys`
    [pages, kv_heads, page_size, dim] and, so many elements after them, `values_apart`, the values;
    `table` int32 [rows, width] page ids; `lengths` int64 [rows], the new position counted;
    `scratch` float32 [threads, size]; then the numbers rows, width, page_size, longest and size.
    """
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.dim
    group, row_size = shape.group, (shape.heads + 2 * shape.kv_heads) * shape.dim
    nbytes, scale = kind.nbytes, np.float32(shape.dim**-0.5)
    read, write, vectors = reader(kind), writer(kind), head_vectors(shape.dim, shape.group, kind)
    score, add, add_one, prefetch = vectors.score, vectors.add, vectors.add_one, vectors.prefetch

    @compiled  # type: ignore[untyped-decorator]
    def begin(qkv: int, head: int, queries: int, newest: int, apart: int) -> None:
        """Scale the queries, make the sums after them zero, store the new key and value."""
        for i in range(group * dim):
            _write_float(queries, i, read(qkv, head * group * dim + i) * scale)
            _write_float(queries, group * dim + i, np.float32(0))
        for i in range(dim):
            write(newest, i, read(qkv, (heads + head) * dim + i))
            write(newest, apart + i, read(qkv, (heads + kv_heads + head) * dim + i))

    @compiled  # type: ignore[untyped-decorator]
    def score_all(pages: int, table: int, page_size: int, length: int, own: int, pitch: int) -> None:
        """Scores of all positions; `pages` are this head's first page, `own` its scratch."""
        scores, page_bytes = own + 2 * group * dim * 4, page_size * dim * nbytes
        last = (length - 1) // page_size
        for page in range(last + 1):
            mine = pages + int32_at(table, page) * kv_heads * page_bytes
            following = pages + int32_at(table, min(page + 1, last)) * kv_heads * page_bytes
            for i in range(min(page_size, length - page * page_size)):
                prefetch(following + i * dim * nbytes)
                place = scores + (page * page_size + i) * 4
                score(own, mine + i * dim * nbytes, place, pitch)

    @compiled  # type: ignore[untyped-decorator]
    def add_all(pages: int, table: int, page_size: int, length: int, own: int, pitch: int) -> None:
        """Sums of all values by their weights, which are where the scores were."""
        sums, weights = own + group * dim * 4, own + 2 * group * dim * 4
        page_bytes, last = page_size * dim * nbytes, (length - 1) // page_size
        for page in range(last + 1):
            mine = pages + int32_at(table, page) * kv_heads * page_bytes
            following = pages + int32_at(table, min(page + 1, last)) * kv_heads * page_bytes
            count = min(page_size, length - page * page_size)
            for i in range(count):
                prefetch(following + i * dim * nbytes)
            in_fours = count - count % 4
            for i in range(0, in_fours, 4):
                place = weights + (page * page_size + i) * 4
                add(sums, mine + i * dim * nbytes, place, pitch)
            for i in range(in_fours, count):
                place = weights + (page * page_size + i) * 4
                add_one(sums, mine + i * dim * nbytes, place, pitch)

    def attend(address: int) -> None:
        given = arguments_at(address)
        qkv, out, keys, apart, tables, lengths = given[:6]
        rows, width, page_size, pitch, size = given[7:12]
        own = given[6] + own_number() * size * 4
        first, last = own_share(rows * kv_heads)
        for item in range(first, last):
            row, head = item // kv_heads, item % kv_heads
            table, length = tables + row * width * 4, int64_at(lengths, row)
            pages = keys + head * page_size * dim * nbytes
            newest = int32_at(table, (length - 1) // page_size) * kv_heads * page_size
            newest = pages + (newest + (length - 1) % page_size) * dim * nbytes
            begin(qkv + row * row_size * nbytes, head, own, newest, apart)
            score_all(pages, table, page_size, length, own, pitch)
            for one in range(group):
                _to_weights(own + (2 * group * dim + one * pitch) * 4, length)
            add_all(pages + apart * nbytes, table, page_size, length, own, pitch)
            for i in range(group * dim):
                total = _read_float(own, group * dim + i)
                write(out, (row * heads + head * group) * dim + i, total)

    return Kernel(attend, num_arguments=12)

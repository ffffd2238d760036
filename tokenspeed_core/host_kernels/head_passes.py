# SPDX-License-Identifier: MIT
"""The steps of one row's attention by neighbouring kv heads, over the row's pages.

Each kv head has a scratch of the thread's, float32: the scaled queries of its group, their sums
[group, dim] each, then the scores [group, longest], which become the weights in place. A page is
read for all of the heads, which lie one after another in it, before the next one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen

from tokenspeed_core.host_kernels.exponential import exponential
from tokenspeed_core.host_kernels.team import compiled
from tokenspeed_core.host_kernels.vectors import (
    FLOAT32,
    ElementType,
    head_vectors,
    int32_at,
    reader,
    writer,
)

Step = Callable[..., None]
_read, _write = reader(FLOAT32), writer(FLOAT32)


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

    def scratch(self, longest: int, kv_heads: int) -> int:
        """float32 numbers a thread needs for so many kv heads of rows of up to `longest`."""
        return kv_heads * self.group * (2 * self.dim + longest)


def beginning(shape: AttentionShape, kind: ElementType) -> Step:
    """`begin(qkv, head, own, newest, apart)`: scale the row's queries, make the sums zero, store
    its new key at `newest` and its value `apart` elements further."""
    heads, kv_heads, dim, size = shape.heads, shape.kv_heads, shape.dim, shape.group * shape.dim
    read, write, scale = reader(kind), writer(kind), np.float32(shape.dim**-0.5)

    @compiled
    def begin(qkv: int, head: int, own: int, newest: int, apart: int) -> None:
        for i in range(size):
            _write(own, i, read(qkv, head * size + i) * scale)
            _write(own, size + i, np.float32(0))
        for i in range(dim):
            write(newest, i, read(qkv, (heads + head) * dim + i))
            write(newest, apart + i, read(qkv, (heads + kv_heads + head) * dim + i))

    return begin


def scoring(shape: AttentionShape, kind: ElementType) -> Step:
    """`score_all(pages, table, page_size, length, heads, own, pitch)`: all positions' scores.

    `pages` is where the first head's keys are in page 0, `pitch` the longest row's length.
    """
    kv_heads, step, group, dim = shape.kv_heads, shape.dim * kind.nbytes, shape.group, shape.dim
    vectors = head_vectors(dim, group, kind)
    score, prefetch = vectors.score, vectors.prefetch

    @compiled
    def score_all(
        pages: int, table: int, page_size: int, length: int, heads: int, own: int, pitch: int
    ) -> None:
        page_bytes, last = kv_heads * page_size * step, (length - 1) // page_size
        own_bytes = group * (2 * dim + pitch) * 4
        for page in range(last + 1):
            mine = pages + int32_at(table, page) * page_bytes
            ahead = pages + int32_at(table, min(page + 1, last)) * page_bytes - mine
            count = min(page_size, length - page * page_size)
            for head in range(heads):
                key, queries = mine + head * page_size * step, own + head * own_bytes
                place = queries + (2 * group * dim + page * page_size) * 4
                for i in range(count):
                    prefetch(key + ahead + i * step)
                    score(queries, key + i * step, place + i * 4, pitch)

    return score_all


def weighting(shape: AttentionShape, kind: ElementType) -> Step:
    """`add_all(pages, table, page_size, length, heads, own, pitch)`: the values by their weights.

    `pages` is where the first head's values are in page 0.
    """
    kv_heads, step, group, dim = shape.kv_heads, shape.dim * kind.nbytes, shape.group, shape.dim
    vectors = head_vectors(dim, group, kind)
    add, add_one, prefetch = vectors.add, vectors.add_one, vectors.prefetch

    @compiled
    def add_all(
        pages: int, table: int, page_size: int, length: int, heads: int, own: int, pitch: int
    ) -> None:
        page_bytes, last = kv_heads * page_size * step, (length - 1) // page_size
        own_bytes = group * (2 * dim + pitch) * 4
        for page in range(last + 1):
            mine = pages + int32_at(table, page) * page_bytes
            ahead = pages + int32_at(table, min(page + 1, last)) * page_bytes - mine
            count = min(page_size, length - page * page_size)
            in_fours = count - count % 4
            for head in range(heads):
                value = mine + head * page_size * step
                sums = own + head * own_bytes + group * dim * 4
                place = sums + (group * dim + page * page_size) * 4
                for i in range(count):
                    prefetch(value + ahead + i * step)
                for i in range(0, in_fours, 4):
                    add(sums, value + i * step, place + i * 4, pitch)
                for i in range(in_fours, count):
                    add_one(sums, value + i * step, place + i * 4, pitch)

    return add_all


@compiled
def to_weights(scores: int, count: int) -> None:
    """Softmax of `count` numbers at an address, in place."""
    largest = np.float32(-np.inf)
    for i in range(count):
        largest = max(largest, _read(scores, i))
    total = np.float32(0)
    for i in range(count):
        weight = exponential(_read(scores, i) - largest)
        _write(scores, i, weight)
        total += weight
    share = np.float32(1) / total
    for i in range(count):
        _write(scores, i, _read(scores, i) * share)

# SPDX-License-Identifier: MIT
"""The kernel of decoding rows: exact attention over scattered pages, a row's bits its own."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import pytest
import torch
from torch import Tensor

from tokenspeed_core.host_kernels.decode_attention import decode_attention
from tokenspeed_core.host_kernels.head_passes import AttentionShape
from tokenspeed_core.host_kernels.vectors import ElementType

SHAPES = [
    AttentionShape(heads=9, kv_heads=3, dim=64),
    AttentionShape(heads=7, kv_heads=1, dim=64),
    AttentionShape(heads=2, kv_heads=2, dim=8),
    AttentionShape(heads=4, kv_heads=2, dim=20),
    AttentionShape(heads=4, kv_heads=1, dim=80),
    AttentionShape(heads=8, kv_heads=2, dim=128),
]
LENGTHS = [1, 2, 3, 4, 5, 15, 16, 17, 64, 100, 257]


class Numbers(Protocol):
    """What the fixture gives."""

    kind: ElementType
    dtype: torch.dtype
    tolerance: float


class Rows:
    """Rows about to decode over scattered pages; all memory that is nobody's is no number."""

    def __init__(
        self, shape: AttentionShape, numbers: Numbers, *, lengths: list[int], page_size: int = 16
    ) -> None:
        self.shape, self.numbers = shape, numbers
        self.lengths, self.page_size = lengths, page_size
        torch.manual_seed(0)
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.dim
        dtype, size = self.numbers.dtype, self.page_size
        counts = [-(-length // size) for length in self.lengths]
        self.pages = torch.full((2, sum(counts) + 1, kv_heads, size, dim), math.nan, dtype=dtype)
        order = (torch.randperm(sum(counts)) + 1).tolist()
        self.table = np.zeros((len(counts), max(counts) + 1), dtype=np.int32)
        self.qkv = torch.randn(len(counts), heads + 2 * kv_heads, dim).to(dtype)
        self.context = []
        for row, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
            self.table[row, :count] = [order.pop() for _ in range(count)]
            context = torch.randn(2, length, kv_heads, dim).to(dtype)
            for position in range(length - 1):
                self.place(row, position)[:] = context[:, position]
            context[:, -1] = self.qkv[row, heads:].view(2, kv_heads, dim)
            self.context.append(context)

    def place(self, row: int, position: int) -> Tensor:
        """Where a position's key and value are: [2, kv_heads, dim]."""
        page = int(self.table[row, position // self.page_size])
        return self.pages[:, page, :, position % self.page_size]

    def attend(self, *, threads: int = 1, at_once: int = 1) -> Tensor:
        """The kernel's result [rows, heads, dim], with scratch for so many kv heads a thread."""
        shape, pages = self.shape, self.pages
        out = torch.full_like(self.qkv[:, : shape.heads].contiguous(), math.nan)
        pitch = max(self.lengths)
        scratch = torch.full((threads, shape.scratch(pitch, at_once)), math.nan)
        lengths = np.array(self.lengths, dtype=np.int64)
        decode_attention(shape, self.numbers.kind)(
            self.qkv.data_ptr(),
            out.data_ptr(),
            pages.data_ptr(),
            pages.stride(0),
            self.table.ctypes.data,
            lengths.ctypes.data,
            scratch.data_ptr(),
            len(self.lengths),
            self.table.shape[1],
            self.page_size,
            pitch,
            scratch.shape[1],
            threads=threads,
        )
        return out

    def exact(self, row: int) -> Tensor:
        """One row's attention in float64."""
        keys, values = self.context[row].double().repeat_interleave(self.shape.group, 2)
        scores = torch.einsum("hd,phd->hp", self.qkv[row, : self.shape.heads].double(), keys)
        weights = torch.softmax(scores * self.shape.dim**-0.5, -1)
        return torch.einsum("hp,phd->hd", weights, values)


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_attention(numbers: Numbers, shape: AttentionShape, page_size: int) -> None:
    """For heads of any number and size, rows of any length, pages of any size."""
    rows = Rows(shape, numbers, lengths=LENGTHS, page_size=page_size)
    found = rows.attend(threads=2, at_once=shape.kv_heads)
    for row in range(len(LENGTHS)):
        torch.testing.assert_close(
            found[row].double(), rows.exact(row), atol=numbers.tolerance, rtol=numbers.tolerance
        )


def test_the_new_key_and_value_are_stored(numbers: Numbers) -> None:
    """Bit for bit in the row's last position, and nothing else of the pages changes."""
    rows = Rows(SHAPES[0], numbers, lengths=LENGTHS)
    before = rows.pages.clone()
    rows.attend()
    for row, length in enumerate(LENGTHS):
        newest = rows.place(row, length - 1)
        assert torch.equal(newest, rows.context[row][:, -1])
        newest[:] = math.nan
    assert torch.equal(rows.pages.nan_to_num(7), before.nan_to_num(7))


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_scratch_decides_how_many_heads_go_together(numbers: Numbers, at_once: int) -> None:
    """A thread takes no more kv heads of a row than it has scratch for; the bits are the same."""
    rows = Rows(SHAPES[0], numbers, lengths=LENGTHS)
    assert torch.equal(rows.attend(at_once=at_once), rows.attend(threads=3, at_once=1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_alone_and_in_company(numbers: Numbers, threads: int) -> None:
    """Whatever rows are beside it, by however many threads, in whatever scratch."""
    rows = Rows(SHAPES[0], numbers, lengths=LENGTHS)
    together = rows.attend(threads=threads)
    for row, length in enumerate(LENGTHS):
        alone = Rows(SHAPES[0], numbers, lengths=LENGTHS)
        alone.lengths = [length]
        alone.qkv = rows.qkv[row : row + 1].clone()
        alone.table = rows.table[row : row + 1].copy()
        assert torch.equal(alone.attend()[0], together[row])


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [0, 1], ids=["key", "value"])
def test_what_is_no_number_stays_in_its_row(numbers: Numbers, broken: float, kind: int) -> None:
    """A broken key or value reaches its row's heads, and no other row."""
    rows = Rows(SHAPES[0], numbers, lengths=[20, 20, 20])
    whole = rows.attend()
    rows.place(1, 7)[kind, 0] = rows.context[1][kind, 7, 0] = broken
    found, expected = rows.attend(), rows.exact(1)
    assert not expected.isfinite().all()
    assert torch.equal(found[1].isfinite(), expected.isfinite())
    assert torch.equal(found[1, 3:], whole[1, 3:])
    assert torch.equal(found[[0, 2]], whole[[0, 2]])

# SPDX-License-Identifier: MIT
"""Products by the kernel: what they compute, and what they leave alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from torch import Tensor

from tokenspeed_core.host_kernels.pair_tiles import COLUMNS, MOST_ROWS, has_pair_products
from tokenspeed_core.host_kernels.products import GROUP_ROWS, bfloat16_product

needs_pairs = pytest.mark.skipif(
    not has_pair_products(), reason="this processor has no AVX512-BF16"
)

ROWS = (1, 2, 3, 7, 8, 9, 15, GROUP_ROWS - 1, GROUP_ROWS, GROUP_ROWS + 5, 3 * GROUP_ROWS)
# Numbers around what a kernel is given, which would show in any sum.
FRAME = 64


def framed(x: Tensor) -> Tensor:
    """The same numbers with some before and behind that are none."""
    around = x.new_full((x.numel() + 2 * FRAME,), math.nan)
    inner = around[FRAME:-FRAME].view(x.shape)
    return inner.copy_(x)


def is_framed(x: Tensor) -> bool:
    """Whether nothing around was written to."""
    around = torch.as_strided(x, (x.numel() + 2 * FRAME,), (1,), x.storage_offset() - FRAME)
    return bool(around[:FRAME].isnan().all() and around[-FRAME:].isnan().all())


def product(x: Tensor, weight: Tensor, *, starts: Tensor, threads: int = 1) -> Tensor:
    """x [rows, in] by a weight [out, in], `out` in whole blocks; `starts` are added."""
    blocks, pairs = len(weight) // COLUMNS, weight.shape[1] // 2
    laid = framed(weight.view(blocks, COLUMNS, pairs, 2).transpose(1, 2))
    x, starts = framed(x), framed(starts)
    out = framed(torch.full((len(x), len(weight)), math.nan, dtype=torch.bfloat16))
    addresses = [tensor.data_ptr() for tensor in (x, laid, starts, out)]
    bfloat16_product()(*addresses, pairs, blocks, len(x), threads=threads)
    assert is_framed(out)
    return out


def some(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape).bfloat16()


def is_exact(found: Tensor, x: Tensor, weight: Tensor, *, starts: Tensor) -> bool:
    """Whether sums are within half a place of bfloat16, and what float32 sums lose."""
    exact = x.double() @ weight.double().T + starts.double()
    size = x.double().abs() @ weight.double().abs().T + starts.double().abs()
    return bool(((found.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-5 * size).all())


@needs_pairs
@pytest.mark.parametrize("width", [2, 6, 64, 576, 2048])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_product_is_the_sum_of_products(width: int, blocks: int, threads: int) -> None:
    """For any width, any number of rows and threads."""
    weight, starts = some(blocks * COLUMNS, width), torch.randn(blocks * COLUMNS)
    for rows in ROWS:
        x = some(rows, width)
        found = product(x, weight, starts=starts, threads=threads)
        assert is_exact(found, x, weight, starts=starts), rows


def _differing(all_rows: Tensor, found: Sequence[tuple[int, Tensor]]) -> list[int]:
    return [n for n, some_rows in found if not torch.equal(all_rows[:n], some_rows)]


@needs_pairs
def test_a_row_s_bits_are_its_own() -> None:
    """Alone, in any company, and by any number of threads."""
    weight, starts = some(5 * COLUMNS, 1536), torch.zeros(5 * COLUMNS)
    x = some(max(ROWS), 1536)
    alone = torch.cat([product(row[None], weight, starts=starts) for row in x])
    for threads in (1, 2, 3):
        found = [(n, product(x[:n], weight, starts=starts, threads=threads)) for n in ROWS]
        assert _differing(alone, found) == [], threads


@needs_pairs
@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
def test_a_sum_has_one_order(rows: int) -> None:
    """From the first pair to the last, of a pair the second product first, in tiles of any size.

    Where 2^30 is added to a sum of ones they are lost, and so are those added to it; what is left
    in the end are those after it was taken away.
    """
    large, count = 2.0**30, 40
    order = [pair * 2 + second for pair in range(count // 2) for second in (1, 0)]
    for comes, goes in combinations(range(0, count, 3), 2):
        x = torch.ones(rows, count).bfloat16()
        x[:, order[comes]], x[:, order[goes]] = large, -large
        found = product(x, torch.ones(COLUMNS, count).bfloat16(), starts=torch.zeros(COLUMNS))
        assert (found == count - 1 - goes).all(), (comes, goes)


@needs_pairs
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_in_its_row_and_column(strange: float) -> None:
    """In a row it spoils that row and no other, in a weight that column."""
    x, weight, starts = some(11, 64), some(2 * COLUMNS, 64), torch.zeros(2 * COLUMNS)
    usual = product(x, weight, starts=starts)
    for row in range(11):
        spoiled = x.clone()
        spoiled[row, 37] = strange
        found = product(spoiled, weight, starts=starts)
        assert not found[row].isfinite().any()
        found[row] = usual[row]
        assert torch.equal(found, usual)
    weight[40, 13] = strange
    found = product(x, weight, starts=starts)
    assert not found[:, 40].isfinite().any()
    found[:, 40] = usual[:, 40]
    assert torch.equal(found, usual)


@needs_pairs
def test_sums_too_large_are_infinite() -> None:
    """What overflows is not held at the largest number, for a request is ended by it."""
    x, starts = torch.full((3, 64), 2.0**100).bfloat16(), torch.zeros(COLUMNS)
    found = product(x, torch.full((COLUMNS, 64), 2.0**30).bfloat16(), starts=starts)
    assert found.isposinf().all()


@needs_pairs
@pytest.mark.parametrize(
    ("setting", "value"), [("CPU_NAME", "generic"), ("CPU_FEATURES", "+sse2"), ("ENABLE_AVX", 0)]
)
def test_there_is_no_kernel_where_numba_compiles_for_another_processor(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: object
) -> None:
    """Compiling it would end the process, so that products are oneDNN's there."""
    monkeypatch.setattr(f"numba.config.{setting}", value)
    assert not has_pair_products()

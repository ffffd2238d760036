# SPDX-License-Identifier: MIT
"""Kernels over rows: what they compute, and that a row's bits are its own."""

from __future__ import annotations

import math
from typing import Protocol

import pytest
import torch
from torch import Tensor

from tokenspeed_core.host_kernels.row_kernels import rms_norm, rotate, silu_gate
from tokenspeed_core.host_kernels.vectors import FLOAT32, ElementType

EPS = 1e-5
WIDTHS = (1, 7, 16, 100, 576)


class Numbers(Protocol):
    """What the fixture gives."""

    kind: ElementType
    dtype: torch.dtype
    tolerance: float


def normed(
    numbers: Numbers, x: Tensor, *, weight: Tensor, added: Tensor | None = None, threads: int = 1
) -> Tensor:
    """The kernel's result; x is written over."""
    out = torch.full_like(x, math.nan)
    other = 0 if added is None else added.data_ptr()
    kernel = rms_norm(x.shape[1], EPS, numbers.kind)
    kernel(x.data_ptr(), other, out.data_ptr(), weight.data_ptr(), len(x), threads=threads)
    return out


def gated(numbers: Numbers, gate_up: Tensor, *, threads: int = 1) -> Tensor:
    """The kernel's result."""
    width = gate_up.shape[1] // 2
    out = gate_up.new_full((len(gate_up), width), math.nan)
    kernel = silu_gate(width, numbers.kind)
    kernel(gate_up.data_ptr(), out.data_ptr(), len(gate_up), threads=threads)
    return out


def rotated(numbers: Numbers, x: Tensor, angles: Tensor, *, heads: int, threads: int = 1) -> Tensor:
    """The kernel's result; `angles` [2, tokens, dim] are cosines and signed sines."""
    x = x.clone()
    kernel = rotate(heads, x.shape[2], numbers.kind)
    cosines, sines = angles
    kernel(x.data_ptr(), cosines.data_ptr(), sines.data_ptr(), len(x), x.stride(0), threads=threads)
    return x


def is_close(found: Tensor, exact: Tensor, numbers: Numbers) -> bool:
    """Whether a result is as near to the exact one as its dtype allows."""
    allowed = numbers.tolerance * exact.abs() + numbers.tolerance * 1e-2
    return bool(((found.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_is_x_over_its_root_mean_square(numbers: Numbers, width: int) -> None:
    """For any width, computed in float32 and rounded once."""
    x, weight = torch.randn(5, width).to(numbers.dtype), torch.rand(width) + 0.5
    wide = x.double()
    exact = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()
    assert is_close(normed(numbers, x, weight=weight), exact, numbers)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_sum_before_a_norm_is_rounded_as_torch_does(numbers: Numbers, width: int) -> None:
    """x holds the sum afterwards, bit for bit, and the result is the norm of that."""
    x, other = torch.randn(2, 9, width).to(numbers.dtype).mul_(3).unbind(0)
    weight = torch.rand(width)
    total = x + other
    found = normed(numbers, x, weight=weight, added=other)
    assert torch.equal(x, total)
    assert torch.equal(found, normed(numbers, total, weight=weight))


def test_every_bfloat16_is_rounded_as_torch_does(numbers: Numbers) -> None:
    """Sums of a number and a half, one or one and a half of its last place: halves go to even."""
    ends = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    ends = ends[ends.isfinite() & (ends.abs() > 1e-30) & (ends.abs() < 1e30)].to(numbers.dtype)
    for part in (2**-9, 2**-8, 3 * 2**-9):
        other = (ends.float() * part).to(numbers.dtype)
        x = ends.clone()[None]
        normed(numbers, x, weight=torch.ones(len(ends)), added=other[None])
        assert torch.equal(x[0], ends + other)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_gate_is_silu_times_up(numbers: Numbers, width: int) -> None:
    """For any width, also where e^-x overflows or vanishes."""
    gate_up = (torch.randn(6, 2 * width) * 30).to(numbers.dtype)
    gate_up[0] = torch.linspace(-120, 120, 2 * width).to(numbers.dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert is_close(gated(numbers, gate_up), gate * torch.sigmoid(gate) * up, numbers)


def test_the_exponential_is_exact_to_the_last_places() -> None:
    """x / (1 + e^-x) from -80 to 80 is within 4e-7 of the exact one, in parts of it."""
    x = torch.linspace(-80, 80, 200_001)
    gate_up = torch.stack([x, torch.ones_like(x)], -1).contiguous()
    out = torch.empty(len(x), 1)
    silu_gate(1, FLOAT32)(gate_up.data_ptr(), out.data_ptr(), len(x), threads=1)
    exact = x.double() * torch.sigmoid(x.double())
    assert ((out[:, 0].double() - exact).abs() <= 4e-7 * exact.abs()).all()


@pytest.mark.parametrize("dim", [2, 6, 16, 64, 80])
def test_a_rotation_turns_the_first_heads_only(numbers: Numbers, dim: int) -> None:
    """Each half by the other; the heads after them keep their bits."""
    x, angles = torch.randn(7, 5, dim).to(numbers.dtype), torch.randn(2, 7, dim).to(numbers.dtype)
    found = rotated(numbers, x, angles, heads=3)
    wide, (cosines, sines) = x.double(), angles.double()[:, :, None]
    exact = wide * cosines + wide.roll(dim // 2, -1) * sines
    # Where two products nearly cancel, what is left is as exact as they were.
    allowed = numbers.tolerance * ((wide * cosines).abs() + (wide.roll(dim // 2, -1) * sines).abs())
    assert ((found.double() - exact).abs() <= allowed + 1e-9)[:, :3].all()
    assert torch.equal(found[:, 3:], x[:, 3:])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_alone_and_in_company(numbers: Numbers, threads: int) -> None:
    """Whatever rows are beside it, wherever they lie, by however many threads."""
    weight, rows, width = torch.rand(576), 13, 576
    x = torch.randn(rows, width).to(numbers.dtype)
    gates = torch.randn(rows, 2 * width).to(numbers.dtype)
    heads, angles = torch.randn(rows, 9, 64).to(numbers.dtype), torch.randn(2, rows, 64)
    angles = angles.to(numbers.dtype)
    together = (
        normed(numbers, x.clone(), weight=weight, threads=threads),
        gated(numbers, gates, threads=threads),
        rotated(numbers, heads, angles, heads=9, threads=threads),
    )
    for row in range(rows):
        mine = slice(row, row + 1)
        assert torch.equal(together[0][mine], normed(numbers, x[mine].clone(), weight=weight))
        assert torch.equal(together[1][mine], gated(numbers, gates[mine].clone()))
        turned = rotated(numbers, heads[mine], angles[:, mine].contiguous(), heads=9)
        assert torch.equal(together[2][mine], turned)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_hidden(numbers: Numbers, broken: float) -> None:
    """One such value makes its whole norm, and its own gate, no number; other rows stay whole."""
    x, weight = torch.randn(3, 40).to(numbers.dtype), torch.ones(40)
    x[1, 17] = broken
    found = normed(numbers, x, weight=weight)
    assert found[1].isnan().any()
    assert found[[0, 2]].isfinite().all()
    gates = torch.ones(3, 80, dtype=numbers.dtype)
    gates[1, 17] = broken
    gates[2, 57] = broken
    found = gated(numbers, gates)
    assert not found[1, 17].isfinite()
    assert not found[2, 17].isfinite()
    assert found.isfinite().sum() == found.numel() - 2


@pytest.mark.parametrize("width", [16, 64, 576])
def test_a_row_whose_squares_overflow_is_still_of_numbers(numbers: Numbers, width: int) -> None:
    """It is divided by infinity, which an estimate of the root would make no number."""
    x = torch.full((2, width), 1e20).to(numbers.dtype)
    assert torch.equal(normed(numbers, x, weight=torch.ones(width)), torch.zeros_like(x))

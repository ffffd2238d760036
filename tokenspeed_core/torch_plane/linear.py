# SPDX-License-Identifier: MIT
"""Matrix products with weights laid out once, in the fastest form for a device.

On CPUs that multiply pairs of bfloat16 numbers a kernel of our own computes bf16, in `blocked`. On
others it is oneDNN, whose plain product lays bf16 weights out at every call, and its packed form
once. Processors with matrix tiles have products of their own, in `tiles`.

In every form a row's result is the same, bit for bit, however many rows are beside it. With fewer
than `FEWEST_ROWS` a library may turn to another algorithm, and oneDNN's is also the slower one, so
that libraries are given at least so many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.host_kernels.pair_tiles import has_pair_products
from tokenspeed_core.host_kernels.products import bfloat16_product
from tokenspeed_core.torch_plane.blocked import BlockedLinear
from tokenspeed_core.torch_plane.stored import PackedTensor, PlainTensor, Stored
from tokenspeed_core.torch_plane.tiles import TiledLinear

FEWEST_ROWS = 4


class Linear(Protocol):
    """x [n, in] to x W^T + b [n, out], once its weight [out, in] and bias [out] were put."""

    @property
    def weight(self) -> Stored:
        """Where the weight goes."""
        ...

    @property
    def bias(self) -> Stored | None:
        """Where the bias goes; None without one."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        ...


class PlainLinear:
    """Weights as they are, for devices whose library lays them out itself."""

    def __init__(self, weight: PlainTensor | None = None, *, has_bias: bool) -> None:
        self.weight = weight or PlainTensor()
        self.bias = PlainTensor() if has_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        bias = None if self.bias is None else self.bias.tensor
        return functional.linear(x, self.weight.tensor, bias)


class PackedLinear:
    """Weights in oneDNN's own layout, on the CPU."""

    def __init__(self, *, has_bias: bool) -> None:
        self.weight = PackedTensor()
        self.bias = PlainTensor() if has_bias else None
        self._run = torch.ops.mkldnn._linear_pointwise.default
        self._no_scalars: list[float] = []

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        assert x.shape[0] >= FEWEST_ROWS, "fewer rows are computed in another way; add some"
        bias = None if self.bias is None else self.bias.tensor
        product: Tensor = self._run(x, self.weight.tensor, bias, "none", self._no_scalars, "")
        return product


@frozen(eq=False, kw_only=True)
class Products:
    """Makes the products of a decoder: `make(has_bias=...)`."""

    make: Callable[..., Linear]
    # How many rows each must be given. A decoder that exchanges rows with others, on processors
    # unlike its own, gives `FEWEST_ROWS` always.
    fewest_rows: int = FEWEST_ROWS
    # Whether weights lie as they were put, so that a tied head can be the embedding itself.
    keeps_layout: bool = False
    # Waits until they are ready; EngineError if they cannot be.
    finish: Callable[[], None] = lambda: None


def with_fewest_rows(x: Tensor, fewest: int) -> Tensor:
    """x [n, m] with rows of zeros added until there are so many."""
    missing = fewest - len(x)
    return x if missing <= 0 else functional.pad(x, (0, 0, 0, missing))


def products(dtype: torch.dtype, device: torch.device) -> Products:
    """The fastest ones for a device."""
    if device.type == "cpu" and dtype == torch.bfloat16 and _has_own_kernel():
        kernel = bfloat16_product()
        return Products(make=partial(BlockedLinear, kernel), fewest_rows=1, finish=kernel.wait)
    if device.type != "cpu" or not _can_pack(dtype):
        return Products(make=PlainLinear, keeps_layout=True)
    if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return Products(make=TiledLinear)
    return Products(make=PackedLinear)


def _has_own_kernel() -> bool:
    """Whether products are our own kernel's, which knows pairs, but no matrix tiles."""
    return has_pair_products() and not torch.cpu._is_amx_tile_supported()


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has a packed product of that type on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32

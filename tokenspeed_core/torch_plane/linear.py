# SPDX-License-Identifier: MIT
"""Matrix products with weights laid out once.

On the CPU a plain product re-lays bf16 weights at every call; oneDNN's packed form does it once and
is 1.3 to 1.8 times faster. A row's result is the same, bit for bit, however many rows are beside
it, as long as there are at least `FEWEST_ROWS`: below that oneDNN may turn to another algorithm,
which is also the slower one. Processors with matrix tiles have products of their own, in `tiles`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

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

    def __init__(self, weight: PlainTensor, bias: PlainTensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        bias = None if self.bias is None else self.bias.tensor
        return functional.linear(x, self.weight.tensor, bias)


class PackedLinear:
    """Weights in oneDNN's own layout, on the CPU."""

    def __init__(self, bias: PlainTensor | None = None) -> None:
        self.weight = PackedTensor()
        self.bias = bias
        self._run = torch.ops.mkldnn._linear_pointwise.default
        self._no_scalars: list[float] = []

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        assert x.shape[0] >= FEWEST_ROWS, "fewer rows are computed in another way; add some"
        bias = None if self.bias is None else self.bias.tensor
        product: Tensor = self._run(x, self.weight.tensor, bias, "none", self._no_scalars, "")
        return product


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has a packed product of that type on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def is_packed(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products there are fastest with packed weights."""
    return device.type == "cpu" and _can_pack(dtype)


def linear(dtype: torch.dtype, device: torch.device, *, has_bias: bool) -> Linear:
    """The fastest form for a device, still without its weight."""
    bias = PlainTensor() if has_bias else None
    if not is_packed(dtype, device):
        return PlainLinear(PlainTensor(), bias)
    if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return TiledLinear(bias)
    return PackedLinear(bias)


def with_fewest_rows(x: Tensor) -> Tensor:
    """x [n, m] with rows of zeros added until there are `FEWEST_ROWS`."""
    missing = FEWEST_ROWS - x.shape[0]
    return x if missing <= 0 else functional.pad(x, (0, 0, 0, missing))

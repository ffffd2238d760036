# SPDX-License-Identifier: MIT
"""Matrix products with weights laid out once.

On the CPU a plain product re-lays bf16 weights at every call; oneDNN's packed form does it once and
is 1.3 to 1.8 times faster. A row's result is the same, bit for bit, however many rows are beside
it, as long as there are at least `FEWEST_ROWS`: below that oneDNN may turn to another algorithm,
which is also the slower one. On processors with matrix tiles it sums a long row in as many parts as
suit the number of rows; there such products go in blocks of few rows, which are summed alike.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.torch_plane.stored import PackedTensor, PlainTensor, Stored

FEWEST_ROWS = 4
# With tiles, seen on Sapphire Rapids: up to this long it is always one sum, ...
LONGEST_SUM = 1024
# ... and up to this long it is summed alike for 4 to 40 rows; beyond, only for equal numbers.
LONGEST_UNPADDED = 4096
BLOCK_ROWS = 32


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
        self._has_tiles: bool = torch.cpu._is_amx_tile_supported()

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        assert x.shape[0] >= FEWEST_ROWS, "fewer rows are computed in another way; add some"
        if self._has_tiles and x.shape[1] > LONGEST_SUM and x.dtype == torch.bfloat16:
            return self._in_blocks(x)
        return self._product(x)

    def _in_blocks(self, x: Tensor) -> Tensor:
        fewest = FEWEST_ROWS if x.shape[1] <= LONGEST_UNPADDED else BLOCK_ROWS
        parts = [self._product(with_rows(block, fewest)) for block in x.split(BLOCK_ROWS)]
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        return found[: x.shape[0]]

    def _product(self, x: Tensor) -> Tensor:
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
    return PackedLinear(bias) if is_packed(dtype, device) else PlainLinear(PlainTensor(), bias)


def with_fewest_rows(x: Tensor) -> Tensor:
    """x [n, m] with rows of zeros added until there are `FEWEST_ROWS`."""
    return with_rows(x, FEWEST_ROWS)


def with_rows(x: Tensor, fewest: int) -> Tensor:
    """x [n, m] with rows of zeros added until there are so many."""
    missing = fewest - x.shape[0]
    return x if missing <= 0 else functional.pad(x, (0, 0, 0, missing))

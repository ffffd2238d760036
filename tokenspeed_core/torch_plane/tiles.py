# SPDX-License-Identifier: MIT
"""Matrix products in bfloat16 on processors with matrix tiles (AMX).

There oneDNN reads a weight fastest for few rows if its layout is 32 columns wide, from memory a
third faster than 64, but then sums more than 32 rows in other parts. In a layout 64 wide many rows
are summed as the few are, unless rows are long. So weights with short rows are held in both, and
those with long ones in the narrow layout only, which takes blocks of 32 rows.

All of this was seen on Sapphire Rapids; `test_linear` looks at it again wherever it runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenspeed_core.torch_plane.stored import PackedTensor, PlainTensor, Stored

# As a packing hint, one row gives the wide layout, and any other number the narrow one.
NARROW_HINT_ROWS, WIDE_HINT_ROWS = 16, 1
# The narrow layout sums up to so many rows alike, however long they are.
NARROW_ROWS = 32
# The wide one sums any number of rows up to this long alike, and as the narrow one does, ...
LONGEST_WHOLE = 1024
# ... and up to this long so many rows.
LONGEST_WIDE, WIDE_ROWS = 2048, 128


class TiledTensor:
    """A weight [out, in] in the layouts it is used in."""

    def __init__(self) -> None:
        self.narrow = PackedTensor(NARROW_HINT_ROWS)
        self.wide: PackedTensor | None = None

    def put(self, dense: Tensor) -> None:
        """Lay the weight out anew."""
        self.narrow.put(dense)
        self.wide = None
        if dense.shape[1] <= LONGEST_WIDE:
            self.wide = PackedTensor(WIDE_HINT_ROWS)
            self.wide.put(dense)

    def dense(self) -> Tensor:
        """The weight in the usual layout; the same values, because packing only moves them."""
        return self.narrow.dense()

    def drop(self) -> None:
        """Let go of both layouts."""
        self.narrow.drop()
        self.wide = None


class TiledLinear:
    """x [n, in] to x W^T + b [n, out]; a row's bits are the same for every n."""

    def __init__(self, *, has_bias: bool) -> None:
        self._weight = TiledTensor()
        self.bias = PlainTensor() if has_bias else None
        self._run = torch.ops.mkldnn._linear_pointwise.default
        self._no_scalars: list[float] = []

    @property
    def weight(self) -> Stored:
        """Where the weight goes."""
        return self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        narrow, wide = self._weight.narrow.tensor, self._weight.wide
        if len(x) <= NARROW_ROWS:
            return self._product(x, narrow)
        if wide is None:
            return self._in_blocks(x, narrow, rows=NARROW_ROWS)
        if x.shape[1] <= LONGEST_WHOLE:
            return self._product(x, wide.tensor)
        return self._in_blocks(x, wide.tensor, rows=WIDE_ROWS)

    def _in_blocks(self, x: Tensor, weight: Tensor, *, rows: int) -> Tensor:
        return torch.cat([self._product(block, weight) for block in x.split(rows)])

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.tensor
        product: Tensor = self._run(x, weight, bias, "none", self._no_scalars, "")
        return product

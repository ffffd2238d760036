# SPDX-License-Identifier: MIT
"""Matrix products in bfloat16 by the CPU's own kernel, and weights laid out for it.

A row's bits are the same however many rows are beside it and however many threads compute.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.host_kernels.pair_tiles import COLUMNS
from tokenspeed_core.host_kernels.products import GROUP_ROWS
from tokenspeed_core.host_kernels.team import Kernel, useful_threads
from tokenspeed_core.torch_plane.host_memory import use_huge_pages


class BlockedWeight:
    """A weight [out, in] as [blocks, pairs of in, columns of a block, 2]; zeros fill it up."""

    def __init__(self) -> None:
        self.drop()

    def put(self, dense: Tensor) -> None:
        """Lay the weight out anew."""
        assert dense.dtype is torch.bfloat16, "only bfloat16 comes in pairs of a word"
        columns, width = dense.shape
        # A copy even of what needs no padding would be a second one.
        if width % 2 or columns % COLUMNS:
            dense = functional.pad(dense, (0, width % 2, 0, -columns % COLUMNS))
        words = dense.contiguous().view(torch.int32)
        self.words = words.view(-1, COLUMNS, words.shape[1]).transpose(1, 2).contiguous()
        self.columns, self.width = columns, width
        self.num_blocks, self.pairs = self.words.shape[:2]
        use_huge_pages(self.words.data_ptr(), self.words.nbytes)

    def dense(self) -> Tensor:
        """The weight in the usual layout."""
        whole = self.words.transpose(1, 2).flatten(0, 1).contiguous().view(torch.bfloat16)
        return whole[: self.columns, : self.width].contiguous()

    def drop(self) -> None:
        """Let go of the memory."""
        self.columns = self.width = self.num_blocks = self.pairs = 0
        self.words = torch.empty(0, 0, COLUMNS, dtype=torch.int32)


class BlockedBias:
    """A bias [out] in float32; zeros fill it up."""

    def __init__(self) -> None:
        self.drop()

    def put(self, dense: Tensor) -> None:
        """Hold these numbers."""
        self.starts = functional.pad(dense.float(), (0, -len(dense) % COLUMNS))
        self.columns = len(dense)

    def dense(self) -> Tensor:
        """What was put, which was bfloat16."""
        return self.starts[: self.columns].bfloat16()

    def drop(self) -> None:
        """Let go of the memory."""
        self.columns, self.starts = 0, torch.empty(0)


class BlockedLinear:
    """x [n, in] to x W^T + b [n, out], all bfloat16."""

    def __init__(self, kernel: Kernel, *, has_bias: bool) -> None:
        self.weight = BlockedWeight()
        self.bias = BlockedBias() if has_bias else None
        self._kernel = kernel
        self._zeros = torch.empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        """The product for n rows."""
        weight, rows = self.weight, len(x)
        assert x.dtype is torch.bfloat16, "the kernel knows nothing else"
        assert x.shape[1] == weight.width > 0, "rows as wide as the weight, which is there"
        if weight.width % 2 or not x.is_contiguous():
            x = functional.pad(x, (0, weight.width % 2)).contiguous()
        count = weight.num_blocks
        out = x.new_empty(rows, count * COLUMNS)
        self._kernel(
            x.data_ptr(),
            weight.words.data_ptr(),
            self._starts(count * COLUMNS).data_ptr(),
            out.data_ptr(),
            weight.pairs,
            count,
            rows,
            threads=useful_threads(count * -(-rows // GROUP_ROWS), COLUMNS * weight.width),
        )
        return out if count * COLUMNS == weight.columns else out[:, : weight.columns].contiguous()

    def _starts(self, count: int) -> Tensor:
        """What the sums start with, float32 [count]."""
        if self.bias is None:
            if len(self._zeros) != count:
                self._zeros = torch.zeros(count)
            return self._zeros
        assert self.bias.columns == self.weight.columns, "a bias for each column"
        return self.bias.starts

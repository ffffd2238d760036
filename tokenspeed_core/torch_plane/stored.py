# SPDX-License-Identifier: MIT
"""Places that hold one tensor each, in whatever form it is used; empty until they are filled."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tokenspeed_core.torch_plane.host_memory import use_huge_pages

# The quickest layout for any number of rows, where there are no matrix tiles.
PACKING_HINT_ROWS = 1


class Stored(Protocol):
    """One tensor that can be replaced, read back exactly, and let go."""

    def put(self, dense: Tensor) -> None:
        """Hold this tensor from now on; the caller writes to it no more."""
        ...

    def dense(self) -> Tensor:
        """What was put, in its own layout; it must not be written to."""
        ...

    def drop(self) -> None:
        """Let go of the memory."""
        ...


class PlainTensor:
    """A tensor as it is."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0)

    def put(self, dense: Tensor) -> None:
        """Hold this tensor itself."""
        self.tensor = dense

    def dense(self) -> Tensor:
        """The tensor itself."""
        return self.tensor

    def drop(self) -> None:
        """Let go of the tensor."""
        self.tensor = torch.empty(0)


class PackedTensor:
    """A weight [out, in] in oneDNN's own layout, on the CPU: the one for so many rows."""

    def __init__(self, hint_rows: int = PACKING_HINT_ROWS) -> None:
        self.tensor = torch.empty(0)
        self._hint_rows = hint_rows

    def put(self, dense: Tensor) -> None:
        """Lay the weight out anew."""
        self.tensor = torch.ops.mkldnn._reorder_linear_weight(dense, self._hint_rows)
        use_huge_pages(
            torch.ops.mkldnn.data_ptr(self.tensor), torch.ops.mkldnn._nbytes(self.tensor)
        )

    def dense(self) -> Tensor:
        """The weight in the usual layout; the same values, because packing only moves them."""
        return self.tensor.to_dense()

    def drop(self) -> None:
        """Let go of the packed weight."""
        self.tensor = torch.empty(0)

# SPDX-License-Identifier: MIT
"""Root mean square normalisation with its weight."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenspeed_core.torch_plane.row_operations import Norm


class RMSNorm:
    """Holds its weight [width] itself, in float32."""

    def __init__(self, norm: Norm, *, dtype: torch.dtype) -> None:
        self._norm = norm
        self._dtype = dtype
        self._weight = torch.empty(0)

    def put(self, dense: Tensor) -> None:
        """Take the weight, in the model's dtype."""
        self._weight = dense.float().contiguous()

    def dense(self) -> Tensor:
        """The weight in the model's dtype, which it came in: nothing is lost."""
        return self._weight.to(self._dtype)

    def drop(self) -> None:
        """Let go of the weight."""
        self._weight = torch.empty(0)

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The normalised x [rows, width], to which `added` is added in place first."""
        return self._norm(x, self._weight, added=added)

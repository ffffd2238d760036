# SPDX-License-Identifier: MIT
"""Root mean square normalisation, in few operations."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """x / rms(x) * weight over the last dimension, computed in float32 and rounded once.

    It holds its weight [width] itself, in float32.
    """

    def __init__(self, width: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self._weight = torch.empty(0)
        self._dtype = dtype
        self._eps = torch.full((), eps, device=device)
        self._share = 1.0 / width

    def put(self, dense: Tensor) -> None:
        """Take the weight, in the model's dtype."""
        self._weight = dense.float()

    def dense(self) -> Tensor:
        """The weight in the model's dtype, which it came in: nothing is lost."""
        return self._weight.to(self._dtype)

    def drop(self) -> None:
        """Let go of the weight."""
        self._weight = torch.empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised x, in its dtype."""
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, 2, -1, True)
        scale = torch.addcmul(self._eps, norm, norm, value=self._share).rsqrt_()
        return (wide * scale).mul_(self._weight).to(x.dtype)

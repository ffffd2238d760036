# SPDX-License-Identifier: MIT
"""Root mean square normalisation, in few operations."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """x / rms(x) * weight over the last dimension, computed in float32 and rounded once."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight.float()
        self._eps = torch.tensor(eps, device=weight.device)
        self._share = 1.0 / len(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised x, in its dtype."""
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, 2, -1, True)
        scale = torch.addcmul(self._eps, norm, norm, value=self._share).rsqrt_()
        return (wide * scale).mul_(self._weight).to(x.dtype)

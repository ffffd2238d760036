# SPDX-License-Identifier: MIT
"""The operations on rows as torch has them, for any device and dtype."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional


@frozen
class PlainRows:
    """Makes them; `row_operations` says what they do."""

    device: torch.device

    def norm(self, width: int, eps: float) -> PlainNorm:
        """Root mean square normalisation."""
        return PlainNorm(torch.full((), eps, device=self.device), 1.0 / width)

    def gate(self, width: int) -> PlainGate:
        """The activation of a gated feed-forward."""
        return PlainGate(width)

    def rotation(self, heads: int, dim: int) -> PlainRotation:
        """The rotation of so many heads."""
        return PlainRotation(heads, dim // 2)

    def decoding(self, heads: int, kv_heads: int, *, dim: int) -> None:
        """There is no kernel."""

    def finish(self) -> None:
        """All are ready."""


@frozen(eq=False)
class PlainNorm:
    """Root mean square normalisation, in few operations."""

    eps: Tensor
    share: float

    def __call__(self, x: Tensor, weight: Tensor, *, added: Tensor | None) -> Tensor:
        """The normalised x."""
        if added is not None:
            x.add_(added)
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, 2, -1, True)
        scale = torch.addcmul(self.eps, norm, norm, value=self.share).rsqrt_()
        return (wide * scale).mul_(weight).to(x.dtype)


@frozen
class PlainGate:
    """silu(gate) * up."""

    width: int

    def __call__(self, gate_up: Tensor) -> Tensor:
        """The gated rows."""
        return functional.silu(gate_up[:, : self.width]).mul_(gate_up[:, self.width :])


@frozen
class PlainRotation:
    """Rotary positions of `heads` heads of 2 x `half` numbers."""

    heads: int
    half: int

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> None:
        """Rotate in place."""
        cosines, sines = angles
        mine = x[:, : self.heads]
        turned = mine.roll(self.half, -1)
        mine.mul_(cosines.unsqueeze(1)).addcmul_(turned, sines.unsqueeze(1))

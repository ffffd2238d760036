# SPDX-License-Identifier: MIT
"""What a decoder does to its rows between the products, in the fastest form for a device.

On the CPU each is a kernel of its own: one pass over the rows instead of a handful of small
operations, most of whose time is their dispatch. Elsewhere they are torch's operations.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tokenspeed_core.torch_plane.host_decode import HostDecoding
from tokenspeed_core.torch_plane.host_rows import HostRows, element_type
from tokenspeed_core.torch_plane.plain_rows import PlainRows

Angles = tuple[Tensor, Tensor]


class Norm(Protocol):
    """x [rows, width] / rms(x) * weight, in float32 and rounded once, in the dtype of x."""

    def __call__(self, x: Tensor, weight: Tensor, *, added: Tensor | None) -> Tensor:
        """The normalised x, to which `added`, if there is one, is added in place first.

        `weight` is float32 [width].
        """
        ...


class Gate(Protocol):
    """silu(gate) * up."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 x width], the gates first, to [rows, width]."""
        ...


class Rotation(Protocol):
    """Rotary positions, in place."""

    def __call__(self, x: Tensor, angles: Angles) -> None:
        """Rotate the first heads of x [tokens, heads and more, dim].

        `angles` are cosines and signed sines [tokens, dim]: a head's first half is turned by minus
        the second.
        """
        ...


class RowOperations(Protocol):
    """Makes the operations for rows of one size."""

    def norm(self, width: int, eps: float) -> Norm:
        """Root mean square normalisation."""
        ...

    def gate(self, width: int) -> Gate:
        """The activation of a gated feed-forward."""
        ...

    def rotation(self, heads: int, dim: int) -> Rotation:
        """The rotation of so many heads."""
        ...

    def decoding(self, heads: int, kv_heads: int, *, dim: int) -> HostDecoding | None:
        """Attention of rows that decode, as a kernel; None where there is none."""
        ...

    def finish(self) -> None:
        """Wait until all that was made is ready; EngineError if something cannot be."""
        ...


def row_operations(dtype: torch.dtype, device: torch.device) -> RowOperations:
    """The operations for rows of a dtype on a device."""
    kind = element_type(dtype, device)
    return PlainRows(device) if kind is None else HostRows(kind)

# SPDX-License-Identifier: MIT
"""The operations on rows as the processor's own kernels."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.host_kernels.row_kernels import rms_norm, rotate, silu_gate
from tokenspeed_core.host_kernels.team import Kernel, useful_threads
from tokenspeed_core.host_kernels.vectors import BFLOAT16, FLOAT32, ElementType

_KINDS = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}


def element_type(dtype: torch.dtype, device: torch.device) -> ElementType | None:
    """What kernels know a tensor's numbers as; None where there are none for it."""
    return _KINDS.get(dtype) if device.type == "cpu" else None


@frozen
class HostRows:
    """Makes them; `row_operations` says what they do."""

    kind: ElementType

    def norm(self, width: int, eps: float) -> HostNorm:
        """Root mean square normalisation."""
        return HostNorm(rms_norm(width, eps, self.kind), width)

    def gate(self, width: int) -> HostGate:
        """The activation of a gated feed-forward."""
        return HostGate(silu_gate(width, self.kind), width)

    def rotation(self, heads: int, dim: int) -> HostRotation:
        """The rotation of so many heads."""
        return HostRotation(rotate(heads, dim, self.kind), heads * dim)


@frozen(eq=False)
class HostNorm:
    """Root mean square normalisation, and the sum before it, in one pass."""

    kernel: Kernel
    width: int

    def __call__(self, x: Tensor, weight: Tensor, *, added: Tensor | None) -> Tensor:
        """The normalised x."""
        assert x.is_contiguous(), "kernels take whole rows, one after another"
        out = torch.empty_like(x)
        rows = len(x)
        self.kernel(
            x.data_ptr(),
            0 if added is None else added.data_ptr(),
            out.data_ptr(),
            weight.data_ptr(),
            rows,
            threads=useful_threads(rows, self.width),
        )
        return out


@frozen(eq=False)
class HostGate:
    """silu(gate) * up, in one pass."""

    kernel: Kernel
    width: int

    def __call__(self, gate_up: Tensor) -> Tensor:
        """The gated rows."""
        assert gate_up.is_contiguous(), "kernels take whole rows, one after another"
        rows = len(gate_up)
        out = gate_up.new_empty(rows, self.width)
        threads = useful_threads(rows, 2 * self.width)
        self.kernel(gate_up.data_ptr(), out.data_ptr(), rows, threads=threads)
        return out


@frozen(eq=False)
class HostRotation:
    """Rotary positions, in place; `size` is how many numbers of a token are rotated."""

    kernel: Kernel
    size: int

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> None:
        """Rotate in place."""
        assert x.is_contiguous(), "kernels take whole tokens, one after another"
        cosines, sines = angles
        tokens, pitch = len(x), x.stride(0)
        self.kernel(
            x.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            tokens,
            pitch,
            threads=useful_threads(tokens, self.size),
        )

# SPDX-License-Identifier: MIT
"""The operations on rows as the processor's own kernels."""

from __future__ import annotations

import torch
from attrs import define, field, frozen
from torch import Tensor

from tokenspeed_core.host_kernels.decode_attention import decode_attention
from tokenspeed_core.host_kernels.head_passes import AttentionShape
from tokenspeed_core.host_kernels.row_kernels import rms_norm, rotate, silu_gate
from tokenspeed_core.host_kernels.team import Kernel, useful_threads
from tokenspeed_core.host_kernels.vectors import BFLOAT16, FLOAT32, ElementType
from tokenspeed_core.torch_plane.host_decode import HostDecoding

WHOLE_ROWS = "kernels take whole rows, one after another"
_KINDS = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}


def element_type(dtype: torch.dtype, device: torch.device) -> ElementType | None:
    """What kernels know a tensor's numbers as; None where there are none for it."""
    return _KINDS.get(dtype) if device.type == "cpu" else None


@define(eq=False)
class HostRows:
    """Makes them; `row_operations` says what they do."""

    kind: ElementType
    _kernels: list[Kernel] = field(factory=list)

    def norm(self, width: int, eps: float) -> HostNorm:
        """Root mean square normalisation."""
        return HostNorm(self._kept(rms_norm(width, eps, self.kind)), width)

    def gate(self, width: int) -> HostGate:
        """The activation of a gated feed-forward."""
        return HostGate(self._kept(silu_gate(width, self.kind)), width)

    def rotation(self, heads: int, dim: int) -> HostRotation:
        """The rotation of so many heads."""
        return HostRotation(self._kept(rotate(heads, dim, self.kind)), heads * dim)

    def decoding(self, heads: int, kv_heads: int, *, dim: int) -> HostDecoding:
        """Attention of rows that decode."""
        shape = AttentionShape(heads, kv_heads, dim)
        return HostDecoding(self._kept(decode_attention(shape, self.kind)), shape)

    def finish(self) -> None:
        """Wait for the machine code of all; EngineError if there is none for one."""
        for kernel in self._kernels:
            kernel.wait()

    def _kept(self, kernel: Kernel) -> Kernel:
        self._kernels.append(kernel)
        return kernel


@frozen(eq=False)
class HostNorm:
    """Root mean square normalisation, and the sum before it, in one pass."""

    kernel: Kernel
    width: int

    def __call__(self, x: Tensor, weight: Tensor, *, added: Tensor | None) -> Tensor:
        """The normalised x."""
        rows, width = x.shape
        assert x.is_contiguous(), WHOLE_ROWS
        assert width == weight.numel() == self.width, "rows of another width"
        other = 0
        if added is not None:
            assert added.shape == x.shape, "what is added has as many rows, of the same width"
            if added.dtype is not x.dtype or not added.is_contiguous():
                # What an extension put in a product's place.
                added = added.to(x.dtype).contiguous()
            other = added.data_ptr()
        out, threads = torch.empty_like(x), useful_threads(rows, width)
        self.kernel(x.data_ptr(), other, out.data_ptr(), weight.data_ptr(), rows, threads=threads)
        return out


@frozen(eq=False)
class HostGate:
    """silu(gate) * up, in one pass."""

    kernel: Kernel
    width: int

    def __call__(self, gate_up: Tensor) -> Tensor:
        """The gated rows."""
        rows, width = gate_up.shape
        assert gate_up.is_contiguous(), WHOLE_ROWS
        assert width == 2 * self.width, "rows of another width"
        out, threads = gate_up.new_empty(rows, self.width), useful_threads(rows, width)
        self.kernel(gate_up.data_ptr(), out.data_ptr(), rows, threads=threads)
        return out


@frozen(eq=False)
class HostRotation:
    """Rotary positions, in place; `size` is how many numbers of a token are rotated."""

    kernel: Kernel
    size: int

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> None:
        """Rotate in place."""
        cosines, sines = angles
        tokens, heads, dim = x.shape
        assert x.is_contiguous(), WHOLE_ROWS
        assert cosines.is_contiguous(), WHOLE_ROWS
        assert sines.is_contiguous(), WHOLE_ROWS
        assert cosines.shape == sines.shape == (tokens, dim), "an angle for each number"
        assert cosines.dtype is sines.dtype is x.dtype, "one dtype for all"
        assert heads * dim >= self.size, "too few heads"
        self.kernel(
            x.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            tokens,
            heads * dim,
            threads=useful_threads(tokens, self.size),
        )

# SPDX-License-Identifier: MIT
"""Attention of decoding rows by the processor's own kernel, straight from the pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.host_kernels.decode_attention import decode_attention
from tokenspeed_core.host_kernels.head_passes import AttentionShape
from tokenspeed_core.host_kernels.team import Kernel, useful_threads
from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.torch_plane.host_rows import element_type
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache


@frozen(eq=False)
class HostDecoding:
    """The kernel for heads of one number and size; plans forwards."""

    kernel: Kernel
    shape: AttentionShape

    def plan(
        self,
        cache: PagedKVCache,
        start: int,
        *,
        pages: npt.NDArray[np.int32],
        lengths: Sequence[int],
    ) -> HostDecode:
        """Rows of `lengths` positions, the new one counted, in `pages` [rows, width].

        The first one is token `start` of the forward.
        """
        longest, rows, shape = max(lengths), len(lengths), self.shape
        size = shape.scratch(longest)
        threads = useful_threads(rows * shape.kv_heads, 2 * longest * shape.dim)
        return HostDecode(
            start=start,
            cache=cache,
            kernel=self.kernel,
            table=np.ascontiguousarray(pages),
            lengths=np.array(lengths, dtype=np.int64),
            scratch=torch.empty(threads, size),
            counts=(rows, pages.shape[1], cache.page_size, longest, size),
            threads=threads,
        )


@frozen(eq=False, kw_only=True)
class HostDecode:
    """One forward's decoding rows; the numpy arrays and the scratch are the kernel's."""

    start: int
    cache: PagedKVCache
    kernel: Kernel
    table: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    scratch: Tensor
    counts: tuple[int, int, int, int, int]
    threads: int

    def attend(self, layer: int, qkv: Tensor, *, out: Tensor) -> None:
        """Store new keys and values of qkv [tokens, heads + 2 x kv_heads, dim], attend to all."""
        pages = self.cache.pages
        first, apart = pages.stride(0) * layer, pages.stride(1)
        self.kernel(
            qkv.data_ptr() + self.start * qkv.stride(0) * qkv.itemsize,
            out.data_ptr() + self.start * out.stride(0) * out.itemsize,
            pages.data_ptr() + first * pages.itemsize,
            apart,
            self.table.ctypes.data,
            self.lengths.ctypes.data,
            self.scratch.data_ptr(),
            *self.counts,
            threads=self.threads,
        )


def host_decoding(
    config: ModelConfig, dtype: torch.dtype, *, device: torch.device
) -> HostDecoding | None:
    """The planner for a model's heads; None where there is no kernel."""
    kind = element_type(dtype, device)
    if kind is None:
        return None
    shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim)
    return HostDecoding(decode_attention(shape, kind), shape)

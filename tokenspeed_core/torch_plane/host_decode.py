# SPDX-License-Identifier: MIT
"""Attention of decoding rows by the processor's own kernel, straight from the pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.host_kernels.decode_attention import AttentionShape, decode_attention
from tokenspeed_core.host_kernels.team import Kernel, useful_threads
from tokenspeed_core.torch_plane.host_rows import element_type
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache


class HostDecoding:
    """The kernel for one cache; plans forwards."""

    def __init__(self, cache: PagedKVCache, kernel: Kernel, *, shape: AttentionShape) -> None:
        self._cache = cache
        self._kernel = kernel
        self._shape = shape

    def plan(
        self, start: int, pages: npt.NDArray[np.int32], *, lengths: Sequence[int]
    ) -> HostDecode:
        """Rows of `lengths` positions, the new one counted, in `pages` [rows, width].

        The first one is token `start` of the forward.
        """
        longest, rows = max(lengths), len(lengths)
        shape = self._shape
        size = shape.scratch(longest)
        threads = useful_threads(rows * shape.kv_heads, 2 * longest * shape.dim)
        return HostDecode(
            start=start,
            cache=self._cache,
            kernel=self._kernel,
            table=np.ascontiguousarray(pages),
            lengths=np.array(lengths, dtype=np.int64),
            scratch=torch.empty(threads, size),
            counts=(rows, pages.shape[1], longest, size),
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
    counts: tuple[int, int, int, int]
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


def host_decoding(cache: PagedKVCache, num_heads: int) -> HostDecoding | None:
    """The kernel's planner; None where there is no kernel for the cache."""
    kind = element_type(cache.pages.dtype, cache.pages.device)
    if kind is None:
        return None
    _, _, _, kv_heads, page_size, dim = cache.pages.shape
    shape = AttentionShape(num_heads, kv_heads, dim, page_size)
    return HostDecoding(cache, decode_attention(shape, kind), shape=shape)

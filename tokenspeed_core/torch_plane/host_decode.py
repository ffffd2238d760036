# SPDX-License-Identifier: MIT
"""Attention of decoding rows by the processor's own kernel, straight from the pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.errors import EngineError
from tokenspeed_core.host_kernels.head_passes import AttentionShape
from tokenspeed_core.host_kernels.team import Kernel, useful_threads
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
        self._check(cache, pages, lengths=lengths)
        longest, rows, shape = max(lengths), len(lengths), self.shape
        pairs = rows * shape.kv_heads
        threads = useful_threads(pairs, 2 * longest * shape.dim)
        size = shape.scratch(longest, min(shape.kv_heads, -(-pairs // threads)))
        table = np.ascontiguousarray(pages, dtype=np.int32)
        counted = np.array(lengths, dtype=np.int64)
        scratch = torch.empty(threads, size, dtype=torch.float32, device="cpu")
        return HostDecode(
            kernel=self.kernel,
            start=start,
            cache=cache,
            memory=(table, counted, scratch),
            arguments=(
                cache.pages.stride(1),
                table.ctypes.data,
                counted.ctypes.data,
                scratch.data_ptr(),
                rows,
                pages.shape[1],
                cache.page_size,
                longest,
                size,
            ),
            threads=threads,
        )

    def _check(
        self, cache: PagedKVCache, pages: npt.NDArray[np.int32], *, lengths: Sequence[int]
    ) -> None:
        """EngineError for what would have the kernel read or write what is not the rows'."""
        shape = self.shape
        num_pages, *found = cache.pages.shape[2:]
        assert found == [shape.kv_heads, cache.page_size, shape.dim], "another model's cache"
        assert cache.pages.is_contiguous(), "pages lie one after another"
        longest = pages.shape[1] * cache.page_size
        if min(lengths) < 1 or max(lengths) > longest:
            raise EngineError(
                f"decoding rows of {min(lengths)} to {max(lengths)} positions, and a block table "
                f"for 1 to {longest}; the scheduler's plan does not fit its tables"
            )
        if pages.min() < 0 or pages.max() >= num_pages:
            raise EngineError(
                f"a block table names pages {pages.min()} to {pages.max()} of a cache of "
                f"{num_pages}; the scheduler has another one, or the cache was released"
            )


@frozen(eq=False, kw_only=True)
class HostDecode:
    """One forward's decoding rows. The kernel has `memory` by the addresses in `arguments`."""

    kernel: Kernel
    start: int
    cache: PagedKVCache
    memory: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], Tensor]
    arguments: tuple[int, ...]
    threads: int

    def attend(self, layer: int, qkv: Tensor, *, out: Tensor) -> None:
        """Store new keys and values of qkv [tokens, heads + 2 x kv_heads, dim], attend to all."""
        assert qkv.is_contiguous(), "kernels take whole tokens, one after another"
        assert out.is_contiguous(), "kernels take whole tokens, one after another"
        assert qkv.dtype is out.dtype is self.cache.pages.dtype, "one dtype for all"
        before = self.start * qkv.itemsize
        self.kernel(
            qkv.data_ptr() + (before and before * qkv.stride(0)),
            out.data_ptr() + (before and before * out.stride(0)),
            self.cache.layer_address(layer),
            *self.arguments,
            threads=self.threads,
        )

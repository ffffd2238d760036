# SPDX-License-Identifier: MIT
"""The paged cache of keys and values: the pages the scheduler hands out.

Page 0 is the null page: block tables name it where a row has no page, so it may be read, under a
mask, and is never a row's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tokenspeed_core.models.config import ModelConfig

KEYS, VALUES = 0, 1


class PagedKVCache:
    """`pages` [layers, 2, num_pages, kv_heads, page_size, head_dim]: keys, then values.

    The memory is mapped and not touched until a page is used.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        *,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (config.num_kv_heads, page_size, config.head_dim)
        self.page_size = page_size
        self.num_pages = num_pages
        self._shape = (config.num_layers, 2, num_pages, *shape)
        self.pages = untouched(self._shape, dtype=dtype, device=device)

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers."""
        return self.pages.nbytes // self.num_pages

    def write(
        self,
        layer: int,
        kv: torch.Tensor,
        *,
        places: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Store kv [tokens, 2, kv_heads, head_dim] at (page, offset), int64 [tokens] each."""
        page, offset = places
        self.pages[layer][:, page, :, offset] = kv

    def read(self, layer: int, page_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_heads, n x page_size, head_dim] of n pages, in order."""
        found = self.pages[layer].index_select(1, page_ids)
        keys, values = found.transpose(1, 2).flatten(2, 3).unbind(0)
        return keys, values

    def zero(self, page_ids: Sequence[int]) -> None:
        """Clear pages that an admission takes over."""
        self.pages[:, :, _index(page_ids, self.pages)] = 0

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy page i of the sources to page i of the destinations."""
        found = self.pages[:, :, _index(sources, self.pages)]
        self.pages[:, :, _index(destinations, self.pages)] = found

    def copy_to(
        self, other: PagedKVCache, sources: Sequence[int], *, destinations: Sequence[int]
    ) -> None:
        """Copy pages into another cache of the same shape (a snapshot or host pool)."""
        if not len(sources):
            return
        found = self.pages[:, :, _index(sources, self.pages)]
        where = _index(destinations, other.pages)
        other.pages[:, :, where] = found.to(other.pages.device)


def _index(page_ids: Sequence[int], pages: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(np.asarray(page_ids, dtype=np.int64), device=pages.device)


def untouched(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose memory the system hands over only as it is touched (on the CPU)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)

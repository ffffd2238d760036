# SPDX-License-Identifier: MIT
"""The paged cache of keys and values: the pages the scheduler hands out.

Page 0 is the null page: block tables name it where a row has no page, so it may be read, under a
mask, and is never a row's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.torch_plane.device import placed
from tokenspeed_core.torch_plane.host_memory import mapped_zeros

KEYS, VALUES = 0, 1


class PagedKVCache:
    """`pages` [layers, 2, num_pages, kv_heads, page_size, head_dim]: keys, then values.

    The memory is mapped and not touched until a page is used. While it is dropped there is no page
    at all, and using one fails.
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
        self.page_size = page_size
        self.num_pages = num_pages
        shape = (config.num_kv_heads, page_size, config.head_dim)
        self.bytes_per_page = page_bytes(config, page_size=page_size, dtype=dtype)
        self._shape = (config.num_layers, 2, num_pages, *shape)
        self._dtype = dtype
        self._device = device
        self.take()

    def take(self) -> None:
        """Map the memory, all zeros."""
        self._hold(_zeros(self._shape, dtype=self._dtype, device=self._device))

    def drop(self) -> None:
        """Give the memory back, and the contents of all pages with it."""
        layers, kinds, _, *shape = self._shape
        self._hold(torch.empty(layers, kinds, 0, *shape, dtype=self._dtype, device=self._device))

    def _hold(self, pages: Tensor) -> None:
        self.pages = pages
        self._by_layer = list(pages.flatten(1, 4).unbind(0))
        self._addresses = [layer.data_ptr() for layer in pages.unbind(0)]

    def write(self, layer: int, kv: Tensor, *, places: Tensor) -> None:
        """Store kv [tokens, 2 x kv_heads, head_dim] at flat places [tokens, 2 x kv_heads]."""
        self._by_layer[layer].index_put_((places,), kv)

    def read(self, layer: int, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, n x page_size, head_dim] of n pages, in order."""
        found = self.pages[layer].index_select(1, page_ids)
        keys, values = found.transpose(1, 2).flatten(2, 3).unbind(0)
        return keys, values

    def layer_address(self, layer: int) -> int:
        """Where a layer's keys begin, in bytes; the values follow after those of all pages."""
        return self._addresses[layer]

    def zero(self, page_ids: Sequence[int]) -> None:
        """Clear pages that an admission takes over."""
        self.pages[:, :, _index(page_ids, self.pages)] = 0

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy page i of the sources to page i of the destinations."""
        found = self.pages[:, :, _index(sources, self.pages)]
        self.pages[:, :, _index(destinations, self.pages)] = found

    def page(self, page: int) -> Tensor:
        """One page [layers, 2, kv_heads, page_size, head_dim]."""
        return self.pages[:, :, page]


def page_bytes(config: ModelConfig, *, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of a page: keys and values of its positions in all layers."""
    head = page_size * config.head_dim * dtype.itemsize
    return 2 * config.num_layers * config.num_kv_heads * head


def flat_places(blocks: Tensor, chosen: Tensor, *, offsets: Tensor) -> Tensor:
    """Where a position of each chosen block is once all but layers and head_dim is flattened.

    `blocks` [layers, 2, n, kv_heads, positions, head_dim], `chosen` and `offsets` int64 [rows] to
    int64 [rows, 2 x kv_heads]: keys of every head, then values.
    """
    _, kinds, count, heads, positions, _ = blocks.shape
    kind = torch.arange(kinds, device=chosen.device)[:, None] * (count * heads)
    head = torch.arange(heads, device=chosen.device)[None, :]
    first = (chosen * heads)[:, None] + (kind + head).flatten()[None, :]
    return first * positions + offsets[:, None]


def _index(page_ids: Sequence[int], pages: Tensor) -> Tensor:
    return placed(np.asarray(page_ids, dtype=np.int64), pages.device)


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return mapped_zeros(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)

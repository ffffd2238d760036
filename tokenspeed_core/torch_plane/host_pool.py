# SPDX-License-Identifier: MIT
"""The host tier's pages: each one run of bytes, so that whoever moves it elsewhere moves one piece.

On the device a page's parts lie far apart, a piece to every layer; here they are together, in the
order of the layers. The pool outlives a release of the device's memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.torch_plane.host_memory import locked_zeros, mapped_zeros
from tokenspeed_core.torch_plane.kv_cache import page_bytes


class HostPool:
    """`pages` [num_pages, layers, 2, kv_heads, page_size, head_dim]: keys, then values, a layer.

    `memory` is all of it as bytes. Page-locked if it is for a GPU, else not touched until it is
    used. Views of it keep it alive.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        *,
        page_size: int,
        dtype: torch.dtype,
        is_pinned: bool = False,
    ) -> None:
        self.num_pages = num_pages
        self.bytes_per_page = page_bytes(config, page_size=page_size, dtype=dtype)
        self.page_shape = (config.num_layers, 2, config.num_kv_heads, page_size, config.head_dim)
        shape = (num_pages, *self.page_shape)
        self.pages = (locked_zeros if is_pinned else mapped_zeros)(shape, dtype)
        self.memory = self.pages.view(torch.uint8).view(-1).numpy().data

    def page(self, page: int) -> Tensor:
        """One page [layers, 2, kv_heads, page_size, head_dim]."""
        return self.pages[page]

    def bytes_of(self, page: int) -> memoryview:
        """One page's bytes, writable."""
        start = page * self.bytes_per_page
        return self.memory[start : start + self.bytes_per_page]

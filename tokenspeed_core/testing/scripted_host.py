# SPDX-License-Identifier: MIT
"""The host tier of the scripted plane as bytes: what is moved there can be moved on, and back.

A rank's bytes are its own: fingerprints are mixed with which part of a page the rank holds. Pages
that come back from the wrong rank, stage or prefix are found at the first forward that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenspeed_hookspecs import CacheGroup, HostGroup

Cells = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1


@frozen
class HostPart:
    """Which part of each page a rank holds."""

    shard_count: int = 1
    shard: int = 0
    stage: int = 0

    @property
    def salt(self) -> int:
        """What this part's bytes are mixed with; 0 for whole pages of a single stage."""
        place = (self.shard_count - 1, self.shard, self.stage)
        return hash(place) & _MASK if any(place) else 0


class ScriptedHostPages:
    """Pages [num_pages, page_size] of fingerprints, a pool a group."""

    def __init__(self, groups: Sequence[CacheGroup], num_pages: int, *, part: HostPart) -> None:
        self.num_pages = num_pages
        self.cells: Mapping[str, Cells] = {
            group.name: np.zeros((num_pages, group.page_size), dtype=np.uint64) for group in groups
        }
        self._part = part
        self._page_sizes = {group.name: group.page_size for group in groups}

    @property
    def groups(self) -> Sequence[HostGroup]:
        """The cache groups; a page is its cells."""
        part = self._part
        return [
            HostGroup(name, 8 * size, (f"cells: uint64[{size}]",), part.shard_count, part.shard)
            for name, size in self._page_sizes.items()
        ]

    @property
    def buffers(self) -> Sequence[memoryview]:
        """A pool a group."""
        return [cells.data.cast("B") for cells in self.cells.values()]

    def page(self, group: str, page: int) -> memoryview:
        """The bytes of one page."""
        if not 0 < page < self.num_pages:
            raise IndexError(f"expected a host page from 1 to {self.num_pages - 1}, got {page}")
        view: memoryview = self.cells[group][page].data.cast("B")
        return view

    def identity(self) -> Mapping[str, object]:
        """The same on every rank."""
        return {"model": "scripted", "shards": self._part.shard_count, "groups": self._page_sizes}

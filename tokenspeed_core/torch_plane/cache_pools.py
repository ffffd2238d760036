# SPDX-License-Identifier: MIT
"""The page pools, and the cache operations between them.

The snapshot pool holds the pages of retracted requests, the host pool those that were written back.
Operations run on the plane's thread, saves before the pages they leave are used again and fills
before the forward that reads them, so nobody waits for their acknowledgments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
from attrs import frozen
from torch import Tensor

from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.host_pool import HostPool
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.seated import Seats
from tokenspeed_hookspecs import CacheOperation, CacheOperationKind, PageMove, Plan

HOST_TIER, SNAPSHOT_TIER = 0, 1
Pages = npt.NDArray[np.int64]


class Pool(Protocol):
    """Pages of one model, in whatever order they lie."""

    def page(self, page: int) -> Tensor:
        """One page [layers, 2, kv_heads, page_size, head_dim]."""
        ...


@frozen(eq=False)
class CachePools:
    """One cache group's pages on the device, and the pools behind it that exist."""

    group: str
    device: PagedKVCache
    snapshots: PagedKVCache | None = None
    host: HostPool | None = None

    def drop_device(self) -> None:
        """Give back the pages on the device and the snapshots; nothing refers to them any more.

        The host pool stays: the scheduler may still know prefixes in it.
        """
        self.device.drop()
        if self.snapshots is not None:
            self.snapshots.drop()

    def take_device(self) -> None:
        """Map all of these pages again, zeroed."""
        self.device.take()
        if self.snapshots is not None:
            self.snapshots.take()

    def prepare(self, plan: Plan) -> None:
        """Copy and zero pages as the plan says, in that order: a source may be zeroed."""
        copy = plan.copy.get(self.group)
        if copy is not None and len(copy):
            self.device.copy(copy[:, 0].tolist(), copy[:, 1].tolist())
        zero = plan.zero.get(self.group)
        if zero is not None and len(zero):
            self.device.zero(zero.tolist())

    def run(self, operation: CacheOperation, seats: Seats) -> bool:
        """Run one operation; False for a kind that is a plugin's own."""
        if operation.kind is CacheOperationKind.OTHER:
            return False
        request_id = operation.request_id
        if operation.kind is CacheOperationKind.SNAPSHOT and request_id is not None:
            seats.save(request_id, operation.slot)
        for move in operation.moves:
            self._move(operation.kind, move)
        if operation.kind is CacheOperationKind.RESTORE and request_id is not None:
            seats.restore(request_id, operation.slot)
        return True

    def _move(self, kind: CacheOperationKind, move: PageMove) -> None:
        if move.group != self.group:
            raise EngineError(
                f"a {kind.value} moves pages of cache group {move.group!r}; this model has only "
                f"{self.group!r}"
            )
        for source, target, pages in self._routes(kind, move):
            # Page by page: no copy of them all in between, and long runs of bytes at a time.
            for here, there in pages.T.tolist():
                target.page(there).copy_(source.page(here), non_blocking=True)

    def _routes(
        self, kind: CacheOperationKind, move: PageMove
    ) -> Iterator[tuple[Pool, Pool, Pages]]:
        """Which pool copies which pages, int64 [2, n] of sources and destinations, to which."""
        pages = np.array([move.sources, move.destinations], dtype=np.int64)
        if kind is CacheOperationKind.SNAPSHOT:
            yield self.device, _existing(self.snapshots, "snapshot", kind=kind), pages
        elif kind is CacheOperationKind.WRITE_BACK:
            yield self.device, _existing(self.host, "host", kind=kind), pages
        elif kind is CacheOperationKind.LOAD_BACK:
            yield _existing(self.host, "host", kind=kind), self.device, pages
        else:
            tiers = move.source_tiers or [SNAPSHOT_TIER] * len(move.sources)
            in_host = np.array(tiers, dtype=np.int64) == HOST_TIER
            if in_host.any():
                yield _existing(self.host, "host", kind=kind), self.device, pages[:, in_host]
            if not in_host.all():
                pool = _existing(self.snapshots, "snapshot", kind=kind)
                yield pool, self.device, pages[:, ~in_host]


def _existing(pool: Pool | None, name: str, *, kind: CacheOperationKind) -> Pool:
    if pool is None:
        raise EngineError(
            f"the plan has a {kind.value} and this engine has no {name} pages; was the scheduler's "
            f"{name}_pages changed after the data plane was built?"
        )
    return pool

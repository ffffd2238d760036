# SPDX-License-Identifier: MIT
"""Pages between the device and the pools behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tokenspeed_core.errors import EngineError
from tokenspeed_core.testing.tiny_model import TinyModel
from tokenspeed_core.torch_plane.cache_pools import CachePools
from tokenspeed_core.torch_plane.host_pool import HostPool
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.seated import Seats
from tokenspeed_hookspecs import CacheOperation, CacheOperationKind, PageMove, Plan

Kind = CacheOperationKind
CPU = torch.device("cpu")


@pytest.fixture
def seats() -> Seats:
    """Seats of nobody."""
    return Seats(4, vocab_size=10, eos_token_ids=())


@pytest.fixture
def pools(tiny: TinyModel) -> CachePools:
    """Three pools whose pages hold their number, plus 100 in the snapshot pool, 200 on the host."""
    made = [
        PagedKVCache(tiny.config, 8, page_size=4, dtype=torch.float32, device=CPU) for _ in range(2)
    ]
    host = HostPool(tiny.config, 8, page_size=4, dtype=torch.float32)
    for page in range(8):
        made[0].page(page).fill_(page)
        made[1].page(page).fill_(100 + page)
        host.page(page).fill_(200 + page)
    return CachePools("full", made[0], snapshots=made[1], host=host)


def held(pool: PagedKVCache | HostPool | None) -> list[float]:
    """The number each page holds, the same in all of it."""
    assert pool is not None
    pages = [pool.page(page).flatten() for page in range(pool.num_pages)]
    assert all((page == page[0]).all() for page in pages)
    return [float(page[0]) for page in pages]


def operation(kind: Kind, sources: Sequence[int], destinations: Sequence[int]) -> CacheOperation:
    """An operation of nobody's."""
    return CacheOperation(1, kind, (PageMove("full", sources, destinations),))


def test_a_snapshot_and_a_write_back_leave_the_device_as_it_is(
    pools: CachePools, seats: Seats
) -> None:
    """Pages are copied to the pool that the kind names."""
    pools.run(operation(Kind.SNAPSHOT, [1, 2], [5, 6]), seats)
    pools.run(operation(Kind.WRITE_BACK, [3], [7]), seats)
    assert held(pools.snapshots)[5:7] == [1, 2]
    assert held(pools.host)[7] == 3
    assert held(pools.device) == list(range(8))


def test_a_load_back_fills_device_pages(pools: CachePools, seats: Seats) -> None:
    """Host pages come to the device."""
    pools.run(operation(Kind.LOAD_BACK, [1, 2], [6, 5]), seats)
    assert held(pools.device) == [0, 1, 2, 3, 4, 202, 201, 7]


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [((1, 0, 1), [103, 204, 105]), ((), [103, 104, 105]), ((0, 0, 0), [203, 204, 205])],
)
def test_a_restore_reads_each_page_from_its_tier(
    pools: CachePools, seats: Seats, tiers: tuple[int, ...], expected: list[float]
) -> None:
    """Pages of a retracted request may be in either pool; without tiers, in the snapshot pool."""
    move = PageMove("full", [3, 4, 5], [1, 2, 3], tiers)
    pools.run(CacheOperation(1, Kind.RESTORE, (move,)), seats)
    assert held(pools.device)[1:4] == expected


def test_copies_read_all_sources_before_zeroing(pools: CachePools) -> None:
    """A copy's source may be zeroed in the same plan, or be another copy's destination."""
    copy = np.array([[1, 2], [2, 3]], dtype=np.int32)
    zero = np.array([1], dtype=np.int32)
    pools.prepare(Plan(None, (), {"full": zero}, {"full": copy}, (), True))
    assert held(pools.device)[:4] == [0, 0, 1, 2]


def test_a_plugins_own_operation_is_left_alone(pools: CachePools, seats: Seats) -> None:
    """A kind the plane does not know is not acknowledged by it."""
    assert pools.run(CacheOperation(1, Kind.OTHER), seats) is False


def test_an_unknown_group_is_refused(pools: CachePools, seats: Seats) -> None:
    """Pages of a group the model does not have are an error that names both."""
    move = PageMove("window", [1], [1])
    with pytest.raises(EngineError, match="'window'; this model has only 'full'"):
        pools.run(CacheOperation(1, Kind.LOAD_BACK, (move,)), seats)

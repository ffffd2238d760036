# SPDX-License-Identifier: MIT
"""Sums over ranks: right, and the same bits for a row whatever rows are beside it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.torch_plane.device_ranks import device_ranks

CPU = torch.device("cpu")
ROWS, WIDTH = 33, 576


def sums(size: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What each of so many ranks adds, their sum of all rows, and their sum of the last row."""
    store = HashStore()

    def one(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        positions = device_ranks(DeviceSeat(rank, Topology(tp=size), store), CPU).positions
        assert positions is not None
        rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(rank)).to(dtype)
        return rows, positions.sum_(rows.clone()), positions.sum_(rows[-1:].clone())

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_row_has_the_same_sum_alone_and_in_company(size: int, dtype: torch.dtype) -> None:
    """On every rank, and it is the sum."""
    found = sums(size, dtype)
    exact = torch.stack([rows.double() for rows, _, _ in found]).sum(0)
    for _, together, alone in found:
        assert together.dtype == dtype
        torch.testing.assert_close(together, exact.to(dtype))
        assert torch.equal(together[-1:], alone)
        assert torch.equal(together, found[0][1])

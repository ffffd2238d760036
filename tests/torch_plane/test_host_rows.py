# SPDX-License-Identifier: MIT
"""Kernels are given addresses, so what they are given is looked at first."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenspeed_core.errors import EngineError
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.torch_plane.host_rows import HostRows
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.plain_rows import PlainRows
from tokenspeed_core.torch_plane.row_operations import row_operations

CPU = torch.device("cpu")
PAGE_SIZE = 4


@pytest.fixture
def rows() -> HostRows:
    """The CPU's operations on bf16 rows."""
    found = row_operations(torch.bfloat16, CPU)
    assert isinstance(found, HostRows)
    return found


@pytest.fixture
def cache() -> PagedKVCache:
    """Seven pages of a tiny model."""
    config = tiny_model().config
    return PagedKVCache(config, 7, page_size=PAGE_SIZE, dtype=torch.bfloat16, device=CPU)


@pytest.mark.parametrize(
    ("pages", "lengths", "told"),
    [
        ([[1]], [PAGE_SIZE + 1], "rows of 5 to 5 positions"),
        ([[1]], [0], "rows of 0 to 0 positions"),
        ([[7, 1]], [2], "pages 1 to 7 of a cache of 7"),
        ([[-1, 1]], [6], "pages -1 to 1 of a cache of 7"),
    ],
)
def test_a_plan_that_leads_out_of_the_pages_is_refused(
    rows: HostRows, cache: PagedKVCache, *, pages: list[list[int]], lengths: list[int], told: str
) -> None:
    """A table that is too narrow, a row without positions, a page that is not there."""
    config = tiny_model().config
    decoding = rows.decoding(config.num_heads, config.num_kv_heads, dim=config.head_dim)
    with pytest.raises(EngineError, match=told):
        decoding.plan(cache, 0, pages=np.array(pages, dtype=np.int32), lengths=lengths)


def test_pages_that_were_released_are_never_read(rows: HostRows, cache: PagedKVCache) -> None:
    """While the cache is dropped every plan is refused."""
    config = tiny_model().config
    decoding = rows.decoding(config.num_heads, config.num_kv_heads, dim=config.head_dim)
    cache.drop()
    with pytest.raises(EngineError, match="or the cache was released"):
        decoding.plan(cache, 0, pages=np.array([[1]], dtype=np.int32), lengths=[1])


def test_what_is_added_may_come_in_another_form(rows: HostRows) -> None:
    """Of another dtype, or a part of something wider: an extension may have made it."""
    norm, weight = rows.norm(16, 1e-5), torch.ones(16)
    x, added = torch.randn(2, 5, 16).bfloat16().unbind(0)
    expected = norm(x.clone(), weight, added=added)
    for form in (added.float(), torch.stack([added, added], -1)[..., 0]):
        assert torch.equal(norm(x.clone(), weight, added=form), expected)


def test_rows_of_another_shape_are_refused(rows: HostRows) -> None:
    """Nothing beside them is read."""
    x = torch.zeros(4, 16).bfloat16()
    with pytest.raises(AssertionError, match="another width"):
        rows.norm(8, 1e-5)(x, torch.ones(8), added=None)
    with pytest.raises(AssertionError, match="another width"):
        rows.norm(16, 1e-5)(x, torch.empty(0), added=None)
    with pytest.raises(AssertionError, match="as many rows"):
        rows.norm(16, 1e-5)(x, torch.ones(16), added=x[:2])
    with pytest.raises(AssertionError, match="another width"):
        rows.gate(16)(x)
    with pytest.raises(AssertionError, match="an angle for each"):
        rows.rotation(2, 8)(x.view(4, 2, 8), (x.view(8, 8), x.view(8, 8)))


def test_the_scratch_is_float32_whatever_torch_s_default_is(
    rows: HostRows, cache: PagedKVCache
) -> None:
    """A library may set another default for a while."""
    config = tiny_model().config
    decoding = rows.decoding(config.num_heads, config.num_kv_heads, dim=config.head_dim)
    torch.set_default_dtype(torch.bfloat16)
    try:
        plan = decoding.plan(cache, 0, pages=np.array([[1]], dtype=np.int32), lengths=[1])
    finally:
        torch.set_default_dtype(torch.float32)
    assert plan.memory[2].dtype == torch.float32


def test_page_ids_are_int32_for_the_kernel(rows: HostRows, cache: PagedKVCache) -> None:
    """Whatever integers a block table has."""
    config = tiny_model().config
    decoding = rows.decoding(config.num_heads, config.num_kv_heads, dim=config.head_dim)
    plan = decoding.plan(cache, 0, pages=np.array([[1, 2]]), lengths=[5])
    table, *_ = plan.memory
    assert table.dtype == np.int32
    assert table.tolist() == [[1, 2]]


def test_other_dtypes_and_devices_take_torch_s_operations() -> None:
    """There are kernels for float32 and bfloat16 on the CPU."""
    assert isinstance(row_operations(torch.float32, CPU), HostRows)
    assert isinstance(row_operations(torch.float16, CPU), PlainRows)
    assert isinstance(row_operations(torch.bfloat16, torch.device("meta")), PlainRows)

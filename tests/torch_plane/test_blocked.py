# SPDX-License-Identifier: MIT
"""Weights laid out for the kernel of products, and what the kernel is given."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tokenspeed_core.host_kernels.pair_tiles import COLUMNS, has_pair_products
from tokenspeed_core.host_kernels.products import bfloat16_product
from tokenspeed_core.torch_plane.blocked import BlockedBias, BlockedLinear, BlockedWeight

SIZES = [(1, 1), (33, 71), (COLUMNS, 64), (960, 576), (576, 1537)]
needs_pairs = pytest.mark.skipif(
    not has_pair_products(), reason="this processor has no AVX512-BF16"
)


def a_product(size: tuple[int, int], *, has_bias: bool = False) -> BlockedLinear:
    """A product with a random weight [out, in], and a bias if asked for."""
    product = BlockedLinear(bfloat16_product(), has_bias=has_bias)
    product.weight.put(torch.randn(size).bfloat16())
    if product.bias is not None:
        product.bias.put(torch.randn(size[0]).bfloat16())
    return product


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_comes_back(size: tuple[int, int]) -> None:
    """Bit for bit, whatever the size, also the second time; after a drop nothing is held."""
    weight, bias = BlockedWeight(), BlockedBias()
    for _ in range(2):
        dense, numbers = torch.randn(size).bfloat16(), torch.randn(size[0]).bfloat16()
        weight.put(dense)
        bias.put(numbers)
        assert torch.equal(weight.dense(), dense)
        assert torch.equal(bias.dense(), numbers)
    weight.drop()
    bias.drop()
    assert weight.words.numel() == weight.dense().numel() == bias.dense().numel() == 0


def test_what_cannot_be_laid_out_is_refused() -> None:
    """Another dtype; the weight that was there stays."""
    weight, dense = BlockedWeight(), torch.randn(COLUMNS, 4).bfloat16()
    weight.put(dense)
    with pytest.raises(AssertionError, match="only bfloat16"):
        weight.put(torch.zeros(7, 3))
    assert torch.equal(weight.dense(), dense)


@needs_pairs
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_torch_s(size: tuple[int, int], *, has_bias: bool) -> None:
    """For any number of rows, also where rows are parts of something wider."""
    product = a_product(size, has_bias=has_bias)
    bias = None if product.bias is None else product.bias.dense().float()
    for rows in (1, 3, 4, 65):
        wide = torch.randn(rows, 2 * size[1]).bfloat16()
        for x in (wide[:, : size[1]], wide[:, size[1] :].contiguous()):
            found = product(x)
            assert found.shape == (rows, size[0])
            assert found.is_contiguous()
            expected = functional.linear(x.float(), product.weight.dense().float(), bias)
            torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=1e-3)


@needs_pairs
def test_what_does_not_fit_is_refused() -> None:
    """Nothing beside a weight is read: rows of another width or dtype, a weight that was dropped, a
    bias of another size."""
    product = a_product((64, 32), has_bias=True)
    for x in (torch.zeros(1, 31), torch.zeros(1, 33), torch.zeros(1, 0)):
        with pytest.raises(AssertionError, match="as wide as the weight"):
            product(x.bfloat16())
    with pytest.raises(AssertionError, match="nothing else"):
        product(torch.zeros(1, 32))
    assert product.bias is not None
    product.bias.put(torch.zeros(63).bfloat16())
    with pytest.raises(AssertionError, match="a bias for each column"):
        product(torch.zeros(1, 32).bfloat16())
    product.weight.drop()
    with pytest.raises(AssertionError, match="which is there"):
        product(torch.zeros(1, 0).bfloat16())

# SPDX-License-Identifier: MIT
"""A row of a product is the same bits however many rows are beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tokenspeed_core.torch_plane import linear
from tokenspeed_core.torch_plane.linear import FEWEST_ROWS, Linear, PackedLinear, products

CPU = torch.device("cpu")
ROWS = (4, 5, 16, 31, 32, 33, 40, 64, 65, 127, 128, 129, 200, 300)


def chosen(*, has_bias: bool) -> Linear:
    """The form that is chosen here."""
    return products(torch.bfloat16, CPU).make(has_bias=has_bias)


FORMS = [
    chosen,
    pytest.param(
        PackedLinear,
        marks=[
            pytest.mark.skipif(
                torch.cpu._is_amx_tile_supported(),
                reason="with matrix tiles it is one of two layouts",
            ),
            pytest.mark.skipif(
                not linear._can_pack(torch.bfloat16),
                reason="oneDNN packs no bf16 for this processor",
            ),
        ],
    ),
]
both_forms = pytest.mark.parametrize("make", FORMS)


def a_product(make: Callable[..., Linear], size: tuple[int, int]) -> Linear:
    """A product with a random weight [out, in]."""
    product = make(has_bias=False)
    torch.manual_seed(size[1])
    product.weight.put(torch.randn(size).bfloat16())
    return product


@both_forms
@pytest.mark.parametrize("size", [(3072, 576), (576, 1536), (1024, 2048), (512, 3072), (512, 8192)])
def test_bf16_rows_are_the_same_in_any_number(
    make: Callable[..., Linear], size: tuple[int, int]
) -> None:
    """In bf16, for short rows and for long ones."""
    product = a_product(make, size)
    x = torch.randn(max(ROWS), size[1]).bfloat16()
    alone = torch.cat([product(x[row : row + FEWEST_ROWS])[:1] for row in range(max(ROWS) - 3)])
    differing = [n for n in ROWS if not torch.equal(product(x[:n])[: len(alone)], alone[:n])]
    assert differing == []


@both_forms
@pytest.mark.parametrize("size", [(3072, 576), (576, 1536), (512, 3072)])
def test_what_was_put_comes_back(make: Callable[..., Linear], size: tuple[int, int]) -> None:
    """The dense form is the weight, bit for bit, and a second weight replaces the first one."""
    product = a_product(make, size)
    for rows in (4, 40):
        weight = torch.randn(size).bfloat16()
        product.weight.put(weight)
        assert torch.equal(product.weight.dense(), weight)
        x = torch.randn(rows, size[1]).bfloat16()
        expected = (x.float() @ weight.float().T).bfloat16()
        torch.testing.assert_close(product(x), expected, atol=1e-2, rtol=1e-2)

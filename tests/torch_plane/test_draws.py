# SPDX-License-Identifier: MIT
"""The best token of a row."""

from __future__ import annotations

import math

import pytest
import torch

from tokenspeed_core.torch_plane.draws import best_tokens

VOCABS = (1, 2, 255, 256, 512, 513, 1000, 49152)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_first_largest(dtype: torch.dtype, vocab: int) -> None:
    """Of many equal ones, as bf16 has them, the first; in rows of any length."""
    torch.manual_seed(vocab)
    logits = torch.randn(9, vocab).to(dtype)
    logits[3] = 0.5
    logits[4] = -math.inf
    logits[5, -1] = 1e30
    tokens, values = best_tokens(logits)
    expected = [row.tolist().index(max(row.tolist())) for row in logits]
    assert tokens.tolist() == expected
    assert torch.equal(values, logits[torch.arange(9), tokens])


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_is_the_best(dtype: torch.dtype, vocab: int) -> None:
    """Wherever it is in its row, infinity beside it or not; the other rows have their own."""
    logits = torch.zeros(5, vocab, dtype=dtype)
    for row, place in enumerate((0, vocab // 2, vocab - 1)):
        logits[row] = math.inf
        logits[row, place] = math.nan
    logits[4, vocab // 3] = 2.0
    tokens, values = best_tokens(logits)
    assert values[:3].isnan().all()
    assert tokens.tolist() == [0, vocab // 2, vocab - 1, 0, vocab // 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_minus_infinity_is_a_value(dtype: torch.dtype) -> None:
    """A row in which all is barred gives its first token and minus infinity."""
    tokens, values = best_tokens(torch.full((2, 700), -math.inf, dtype=dtype))
    assert tokens.tolist() == [0, 0]
    assert values.tolist() == [-math.inf] * 2

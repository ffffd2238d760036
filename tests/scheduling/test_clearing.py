# SPDX-License-Identifier: MIT
"""A cleared cache stays empty: nothing of a request that ended before comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Rounds = Callable[..., Any]


@pytest.mark.parametrize("prompt", [5, 40])  # less than a page: a tail is pinned by nothing
@pytest.mark.parametrize("waited", range(3))
def test_what_ended_before_a_clearing_is_not_cached_behind_it(
    rounds: Rounds, prompt: int, waited: int
) -> None:
    """Its pages come with the answer of its last row, so until then the cache cannot be cleared."""
    loop = rounds(1)
    first = loop.submit("first", prompt, budget=4)
    while not first.is_over:
        loop.round()
    for _ in range(waited):
        loop.round()
    while not loop.driver.can_clear_cache():
        loop.round()
    assert loop.driver.clear_cache()
    loop.drain()
    loop.submit("same", prompt=[*range(1000, 1000 + prompt), *first.tokens, 1])
    assert list(loop.round().batch.extend_prefix_lens) == [0]

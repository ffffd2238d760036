# SPDX-License-Identifier: MIT
"""How much of a waiting prompt running requests already hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenspeed_core.scheduling.population import Tracked
from tokenspeed_core.scheduling.prefixes import RunningPrefixes


def running(*prompts: Sequence[int]) -> RunningPrefixes:
    """Running requests with these prompts, pages of 4 tokens."""
    prefixes = RunningPrefixes(4)
    for number, prompt in enumerate(prompts):
        prefixes.add(Tracked(str(number), number, prompt, 1))
    return prefixes


@pytest.mark.parametrize(
    ("prompt", "shared"),
    [
        ([*range(10), 99, 98], 8),
        ([*range(8), 99], 8),
        (list(range(8)), 4),  # its last token is always computed
        (list(range(20)), 12),
        ([0, 1, 2], 0),
        ([9, 1, 2, 3, 4], 0),
    ],
)
def test_whole_pages_are_shared(prompt: list[int], shared: int) -> None:
    """Equal tokens count up to the last full page of both, less the token that must run."""
    assert running(range(13)).shared_tokens(Tracked("new", 9, prompt, 1)) == shared


def test_the_longest_counts() -> None:
    """Of several that open alike the best one decides."""
    prefixes = running([*range(4), 77], range(12), [*range(8), 77])
    assert prefixes.shared_tokens(Tracked("new", 9, range(30), 1)) == 12


def test_a_request_that_left_shares_nothing() -> None:
    """Discarding works once and again, and for one that never ran."""
    prefixes, one = RunningPrefixes(4), Tracked("one", 1, range(12), 1)
    prefixes.add(one)
    for _ in range(2):
        prefixes.discard(one)
    assert prefixes.shared_tokens(Tracked("new", 9, range(30), 1)) == 0


def test_a_capped_hit_shares_no_more() -> None:
    """A request that must recompute its prompt counts no page as shared."""
    new = Tracked("new", 9, range(30), 1, max_shared=0)
    assert running(range(12)).shared_tokens(new) == 0

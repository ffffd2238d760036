# SPDX-License-Identifier: MIT
"""Usage tells from which tier of the cache prompts came."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from tokenspeed_hookspecs import Chunk, ChunkDetails, SamplingParams
from tokenspeed_openai.choices import Piece
from tokenspeed_openai.generation import Tally, Wanted
from tokenspeed_openai.requests import CompletionRequest
from tokenspeed_openai.texts import Prompt


def details(tally: Tally) -> Mapping[str, object]:
    """The usage's part on the prompt, as a client reads it."""
    usage: Mapping[str, Mapping[str, object]] = msgspec.to_builtins(tally.usage())
    return usage["prompt_tokens_details"]


@pytest.fixture
def tally() -> Tally:
    """Of two prompts with two choices each."""
    body = CompletionRequest(prompt="x", n=2)
    prompts = [Prompt([1] * 100), Prompt([2] * 100)]
    return Tally(Wanted(body=body, prompts=prompts, sampling=SamplingParams()))


def piece(index: int, cached: int, tiers: Mapping[str, int] | None = None) -> Piece:
    """A choice's first delivery."""
    return Piece(index, "", Chunk([5], 100, 1, cached, ChunkDetails(cached_by_tier=tiers)))


def test_without_other_tiers_nothing_is_added(tally: Tally) -> None:
    """OpenAI's own field alone."""
    tally.add(piece(0, 64))
    assert details(tally) == {"cached_tokens": 64}


def test_tiers_add_up_to_the_cached_tokens(tally: Tally) -> None:
    """Over prompts, each counted once, by the choice that had most from the cache."""
    tally.add(piece(0, 64, {"device": 0, "host": 64}))
    tally.add(piece(1, 96, {"device": 16, "host": 48, "storage": 32}))
    tally.add(piece(2, 32))
    tiers = {"device": 48, "host": 48, "storage": 32}
    assert details(tally) == {"cached_tokens": 128, "cached_tokens_details": tiers}

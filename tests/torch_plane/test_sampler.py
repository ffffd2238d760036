# SPDX-License-Identifier: MIT
"""Sampling: exact in any company, and distributed as the parameters say."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tokenspeed_core.testing.sampling_table import Table, Wish, sample_alone
from tokenspeed_hookspecs import SamplingParams

VOCAB = 1000
GREEDY = SamplingParams(top_k=1)


def some_logits(rows: int, vocab: int = VOCAB) -> Tensor:
    """Random logits that are the same in every run."""
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)) * 3


def varied_wishes() -> list[Wish]:
    """Eight requests with very different parameters, two of them without a seed."""
    params = [
        SamplingParams(seed=42, temperature=0.8, top_p=0.9),
        GREEDY,
        SamplingParams(seed=42),
        SamplingParams(temperature=1.5, top_k=40),
        SamplingParams(seed=7, min_p=0.05, repetition_penalty=1.3),
        SamplingParams(seed=-1, top_k=3, top_p=0.5, presence_penalty=1.0),
        SamplingParams(temperature=0.3, frequency_penalty=-1.0, logit_bias={9: 5.0}),
        SamplingParams(top_k=1, min_new_tokens=9, repetition_penalty=0.7),
    ]
    return [Wish(f"r{i}", p, index=i) for i, p in enumerate(params)]


def test_a_request_gets_the_same_token_in_any_company() -> None:
    """OUT-06: alone or among 1 to 7 others, in 50 orders, every request samples the same token."""
    wishes, logits = varied_wishes(), some_logits(8)
    alone = [sample_alone(logits[i], wish) for i, wish in enumerate(wishes)]
    rng = random.Random(0)
    for size in [1 + n % 8 for n in range(50)]:
        order = rng.sample(range(8), size)
        together = Table(VOCAB).sample(logits[order], [wishes[i] for i in order])
        assert together == [alone[i] for i in order]


def test_each_output_index_draws_anew() -> None:
    """The same logits give different tokens at different places of one output."""
    sampling, logits = SamplingParams(seed=1), torch.zeros(VOCAB)
    tokens = {sample_alone(logits, Wish("r", sampling, index=i)) for i in range(20)}
    assert len(tokens) > 15


def test_draws_follow_the_probabilities() -> None:
    """Over many seeds, tokens come as often as the softmax of logits over temperature says."""
    logits, count = torch.tensor([2.0, 1.0, 0.0, -1.0]), 4000
    wishes = [Wish(f"r{n}", SamplingParams(seed=n, temperature=2.0)) for n in range(count)]
    tokens = Table(4, count + 1).sample(logits.expand(count, 4), wishes)
    found = torch.bincount(torch.tensor(tokens), minlength=4) / count
    assert torch.allclose(found, torch.softmax(logits / 2, -1), atol=0.025)


def reference_choices(logits: Tensor, p: SamplingParams) -> set[int]:
    """The tokens that top-k, then top-p, then min-p leave, by their definitions."""
    probabilities = torch.softmax(logits.double() / p.temperature, -1).tolist()
    order = sorted(range(len(probabilities)), key=lambda t: -probabilities[t])
    kept = order[: p.top_k] if p.top_k > 0 else order
    total, reached, nucleus = sum(probabilities[t] for t in kept), 0.0, []
    for token in kept:
        if reached >= p.top_p:
            break
        nucleus.append(token)
        reached += probabilities[token] / total
    return {t for t in nucleus if probabilities[t] >= p.min_p * probabilities[order[0]]}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(top_k=5),
        SamplingParams(top_k=VOCAB),
        SamplingParams(top_p=0.7),
        SamplingParams(top_p=1e-9),
        SamplingParams(min_p=0.2),
        SamplingParams(top_k=30, top_p=0.6, min_p=0.1, temperature=1.7),
        SamplingParams(top_p=0.9, temperature=50.0),
    ],
    ids=str,
)
def test_filters_leave_what_their_definitions_leave(sampling: SamplingParams) -> None:
    """Every drawn token is one that the definitions keep, and a small kept set is drawn whole."""
    logits = some_logits(1)[0]
    wishes = [Wish(f"r{n}", sampling) for n in range(3000)]
    drawn = set(Table(VOCAB, 3001).sample(logits.expand(3000, VOCAB), wishes))
    allowed = reference_choices(logits, sampling)
    assert drawn <= allowed
    assert len(allowed) > 12 or drawn == allowed


def test_a_nucleus_wider_than_the_preselection_is_whole() -> None:
    """top_p over a flat distribution of many tokens keeps that share of them."""
    vocab = 5000
    logits = -torch.arange(vocab) * 1e-5
    wishes = [Wish(f"r{n}", SamplingParams(top_p=0.8, seed=n)) for n in range(500)]
    tokens = Table(vocab, 501).sample(logits.expand(500, vocab), wishes)
    assert max(tokens) < vocab * 0.81
    assert max(tokens) > vocab * 0.75


def test_greedy_takes_the_first_of_equals() -> None:
    """Ties go to the lowest id, in and behind the whole blocks of a vocabulary."""
    for vocab, places in [(1000, [700, 300, 999]), (1000, [990, 995]), (10, [4, 7])]:
        logits = torch.zeros(1, vocab)
        logits[0, places] = 1.0
        assert Table(vocab).sample(logits, [Wish("r", GREEDY)]) == [min(places)]


@pytest.mark.parametrize("vocab", [10, 256, 1000, 1024])
def test_greedy_equals_argmax(vocab: int) -> None:
    """The argmax in two steps is the argmax, for vocabularies of any size."""
    logits = some_logits(40, vocab)
    wishes = [Wish(f"r{n}", GREEDY) for n in range(40)]
    assert Table(vocab).sample(logits, wishes) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5)])
@pytest.mark.parametrize("place", [0, 511, VOCAB - 1])
def test_a_nan_marks_its_row_only(sampling: SamplingParams, place: int) -> None:
    """NUM-01: a NaN anywhere in a row marks that row, and the neighbours sample as they would."""
    wishes = [Wish(f"r{n}", sampling) for n in range(3)]
    logits = some_logits(3)
    expected = Table(VOCAB).sample(logits, wishes)
    logits[1, place] = torch.nan
    table = Table(VOCAB)
    sampled = table.sampler.sample(logits, table.rows(wishes))
    assert sampled.is_bad.tolist() == [False, True, False]
    assert sampled.tokens[[0, 2]].tolist() == [expected[0], expected[2]]
    assert 0 <= int(sampled.tokens[1]) < VOCAB


def test_a_row_with_everything_barred_is_marked() -> None:
    """A row whose logits are all minus infinity has no token to give."""
    table = Table(VOCAB)
    rows = table.rows([Wish("r", GREEDY)])
    assert table.sampler.sample(torch.full((1, VOCAB), -torch.inf), rows).is_bad.tolist() == [True]

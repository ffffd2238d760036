# SPDX-License-Identifier: MIT
"""Penalties, bias and barred endings."""

from __future__ import annotations

import pytest
import torch

from tokenspeed_core.testing.sampling_table import CPU, EOS, Table, Wish, sample_alone
from tokenspeed_core.torch_plane.penalties import PenaltyCounts
from tokenspeed_hookspecs import SamplingParams

VOCAB = 12


def test_penalties_follow_their_definitions() -> None:
    """Repetition scales what was seen, frequency and presence lower what was said."""
    counts = PenaltyCounts(6, CPU)
    counts.begin("r", [0, 1])
    row = counts.rows_of(["r"])
    for token in (2, 2, 1):
        counts.add(row, torch.tensor([token]))
    strengths = torch.tensor([2.0, 0.5, 0.25]).view(3, 1, 1)
    logits = torch.tensor([[4.0, -1.0, 1.0, 3.0, 0.0, -2.0]])
    penalised = counts.apply(logits, row, strengths=strengths)
    assert penalised.tolist() == [[2.0, -2.0 - 0.75, 0.5 - 1.0 - 0.25, 3.0, 0.0, -2.0]]


def test_counts_outgrow_their_table() -> None:
    """More requests than the first table holds keep their own counts."""
    counts = PenaltyCounts(4, CPU)
    names = [f"r{n}" for n in range(20)]
    for n, name in enumerate(names):
        counts.begin(name, [n % 4])
    strengths = torch.tensor([2.0, 0.0, 0.0]).view(3, 1, 1).expand(3, 20, 1)
    penalised = counts.apply(torch.ones(20, 4), counts.rows_of(names), strengths=strengths)
    assert penalised.argmin(-1).tolist() == [n % 4 for n in range(20)]


def test_a_row_of_counts_is_clean_for_the_next_request() -> None:
    """A request does not inherit the counts of one that ended."""
    counts = PenaltyCounts(4, CPU)
    counts.begin("old", [3])
    counts.add(counts.rows_of(["old"]), torch.tensor([1]))
    counts.end("old")
    counts.begin("new", [])
    strengths = torch.ones(3, 1, 1) * 2
    assert torch.equal(
        counts.apply(torch.ones(1, 4), counts.rows_of(["new"]), strengths=strengths),
        torch.ones(1, 4),
    )
    assert len(counts) == 1


def test_ids_beyond_the_vocabulary_are_not_counted() -> None:
    """A prompt may hold placeholder ids; they penalise nothing."""
    counts = PenaltyCounts(4, CPU)
    counts.begin("r", [-1, 99, 2])
    strengths = torch.tensor([2.0, 0.0, 0.0]).view(3, 1, 1)
    assert counts.apply(torch.ones(1, 4), counts.rows_of(["r"]), strengths=strengths).tolist() == [
        [1.0, 1.0, 0.5, 1.0]
    ]


def test_sampled_tokens_are_counted() -> None:
    """A presence penalty drives the second token away from the first."""
    table = Table(VOCAB)
    rows = table.rows([Wish("r", SamplingParams(top_k=1, presence_penalty=1.5))])
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = 2.0, 1.0
    tokens = [int(table.sampler.sample(logits, rows).tokens) for _ in range(3)]
    assert tokens == [8, 9, 8]


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_k": 2, "temperature": 0.01}])
def test_bias_moves_the_choice(sampling: dict[str, float]) -> None:
    """A bias is added to its token's logit, before the filters."""
    params = SamplingParams(logit_bias={4: 3.0, 5: -9.0}, **sampling)  # type: ignore[arg-type]
    logits = torch.zeros(VOCAB)
    logits[5] = 2.5
    assert sample_alone(logits, Wish("r", params)) == 4


def test_bias_and_stop_ids_beyond_the_vocabulary_touch_nobody() -> None:
    """Ids outside the vocabulary, refused on the way in, do nothing here either."""
    odd = (-1, VOCAB, 2**31 - 1)
    params = SamplingParams(
        top_k=1, logit_bias=dict.fromkeys(odd, 9.0), stop_token_ids=odd, min_new_tokens=1
    )
    logits = torch.zeros(2, VOCAB)
    logits[:, 7] = 1.0
    wishes = [Wish("odd", params), Wish("innocent", SamplingParams(top_k=1))]
    assert Table(VOCAB).sample(logits, wishes) == [7, 7]


@pytest.mark.parametrize("ending", [*EOS, 9])
@pytest.mark.parametrize("top_k", [1, 2])
def test_every_ending_is_barred_until_the_minimum(ending: int, top_k: int) -> None:
    """Both end ids and the stop ids stay away while fewer tokens than the minimum are out."""
    params = SamplingParams(
        top_k=top_k, temperature=0.01, min_new_tokens=3, stop_token_ids=(9,), seed=0
    )
    logits = torch.zeros(VOCAB)
    logits[ending], logits[7] = 9.0, 5.0
    tokens = [sample_alone(logits, Wish("r", params, index=i)) for i in range(5)]
    assert tokens == [7, 7, 7, ending, ending]


def test_an_end_id_that_ends_nothing_is_not_barred() -> None:
    """With ignore_eos the minimum bars stop ids only."""
    params = SamplingParams(top_k=1, min_new_tokens=3, ignore_eos=True, stop_token_ids=(9,))
    logits = torch.zeros(VOCAB)
    logits[9], logits[EOS[0]] = 5.0, 4.0
    assert sample_alone(logits, Wish("r", params)) == EOS[0]

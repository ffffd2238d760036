# SPDX-License-Identifier: MIT
"""Penalties, bias and barred endings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokenspeed_core.testing.sampling_table import CPU, EOS, Table, Wish, sample_alone
from tokenspeed_core.torch_plane.penalties import Penalised, PenaltyTexts
from tokenspeed_hookspecs import SamplingParams

VOCAB = 12


def penalised(
    texts: PenaltyTexts, names: Sequence[str], *, strengths: Sequence[float], said: int = 0
) -> Tensor:
    """Logits 4, 3, 2, ... after the penalties, for requests with a prompt of two tokens."""
    count = len(names)
    logits = torch.arange(4.0, 4.0 - texts.vocab_size, -1).repeat(count, 1)
    rows = Penalised(
        texts.rows_of(names),
        lengths=np.full(count, 2 + said),
        prompt_lengths=np.full(count, 2),
        strengths=torch.tensor(strengths).view(3, 1, 1).expand(3, count, 1),
    )
    return texts.apply(logits, rows)


def said(texts: PenaltyTexts, name: str, *tokens: int) -> None:
    """Let a request with a prompt of two tokens say some."""
    for at, token in enumerate(tokens, 2):
        texts.add(texts.rows_of([name]), torch.tensor([at]), tokens=torch.tensor([token]))


@pytest.fixture
def texts() -> PenaltyTexts:
    """Texts over a vocabulary of six."""
    return PenaltyTexts(6, longest=16, device=CPU)


def test_penalties_follow_their_definitions(texts: PenaltyTexts) -> None:
    """Repetition scales what was seen, frequency and presence lower what was said."""
    texts.begin("r", [0, 5])
    said(texts, "r", 2, 2, 5)
    found = penalised(texts, ["r"], strengths=[2.0, 0.5, 0.25], said=3)
    assert found.tolist() == [[2.0, 3.0, 1.0 - 1.0 - 0.25, 1.0, 0.0, -2.0 - 0.5 - 0.25]]


def test_a_text_counts_up_to_its_length(texts: PenaltyTexts) -> None:
    """What a row says behind the present length, before a retraction, is not counted."""
    texts.begin("r", [0, 0])
    said(texts, "r", 1, 2, 3)
    found = penalised(texts, ["r"], strengths=[1.0, 0.0, 1.0], said=1)
    assert found.tolist() == [[4.0, 2.0, 2.0, 1.0, 0.0, -1.0]]


def test_texts_outgrow_their_table(texts: PenaltyTexts) -> None:
    """More requests than the first table holds keep their own texts."""
    names = [f"r{n}" for n in range(20)]
    for n, name in enumerate(names):
        texts.begin(name, [n % 4] * 2)
    found = penalised(texts, names, strengths=[0.001, 0.0, 0.0])
    assert found.argmax(-1).tolist() == [n % 4 for n in range(20)]


def test_a_row_of_the_table_is_clean_for_the_next_request(texts: PenaltyTexts) -> None:
    """A request does not inherit the text of one that ended."""
    texts.begin("old", [3, 3])
    texts.end("old")
    texts.begin("new", [4, 4])
    assert penalised(texts, ["new"], strengths=[2.0, 2.0, 2.0]).tolist() == [[4, 3, 2, 1, 0, -1]]
    assert len(texts) == 1


def test_ids_beyond_the_vocabulary_are_not_counted(texts: PenaltyTexts) -> None:
    """A prompt may hold placeholder ids; they penalise nothing."""
    texts.begin("r", [-1, 99])
    assert penalised(texts, ["r"], strengths=[2.0, 1.0, 1.0]).tolist() == [[4, 3, 2, 1, 0, -1]]


def test_texts_of_different_lengths_are_penalised_together(texts: PenaltyTexts) -> None:
    """Neighbours with longer texts change nothing."""
    texts.begin("short", [0, 0])
    texts.begin("long", [1, 1])
    said(texts, "long", 2, 3, 4)
    lengths, logits = np.array([2, 5]), torch.ones(2, 6)
    strengths = torch.ones(3, 2, 1)
    rows = Penalised(texts.rows_of(["short", "long"]), lengths, np.array([2, 2]), strengths)
    assert texts.apply(logits, rows).tolist() == [[1.0] * 6, [1, 1, -1, -1, -1, 1]]


def test_sampled_tokens_are_counted() -> None:
    """A presence penalty drives the second token away from the first."""
    table = Table(VOCAB)
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = 2.0, 1.0
    rows, tokens = table.rows([Wish("r", SamplingParams(top_k=1, presence_penalty=1.5))]), []
    for _ in range(3):
        tokens.append(int(table.sampler.sample(logits, rows).tokens))
        rows.columns["length"] += 1
    assert tokens == [8, 9, 8]


def test_a_token_sampled_elsewhere_is_counted() -> None:
    """A first token that came with the row is said as well."""
    table = Table(VOCAB)
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = 2.0, 1.0
    rows = table.rows([Wish("r", SamplingParams(top_k=1, presence_penalty=1.5), index=1)])
    rows.given[0] = 8
    assert int(table.sampler.sample(logits, rows).tokens) == 9


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_k": 2, "temperature": 0.01}])
def test_bias_moves_the_choice(sampling: dict[str, Any]) -> None:
    """A bias is added to its token's logit, before the filters."""
    params = SamplingParams(logit_bias={4: 3.0, 5: -9.0}, **sampling)
    logits = torch.zeros(VOCAB)
    logits[5] = 2.5
    assert sample_alone(logits, Wish("r", params)) == 4


def test_bias_and_stop_ids_beyond_the_vocabulary_touch_nobody() -> None:
    """VAL-04, VAL-06: ids outside the vocabulary, refused on the way in, do nothing here either."""
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
    """OUT-05: both end ids and the stop ids stay away until the minimum of tokens is out."""
    params = SamplingParams(
        top_k=top_k, temperature=0.01, min_new_tokens=3, stop_token_ids=(9,), seed=0
    )
    logits = torch.zeros(VOCAB)
    logits[ending], logits[7] = 9.0, 5.0
    tokens = [sample_alone(logits, Wish("r", params, index=i)) for i in range(5)]
    assert tokens == [7, 7, 7, ending, ending]


def test_a_text_that_can_only_end_may_end() -> None:
    """Where an extension has barred everything but an ending, the minimum gives way."""
    logits = torch.full((VOCAB,), -torch.inf)
    logits[EOS[1]] = 1.0
    params = SamplingParams(top_k=1, min_new_tokens=3)
    assert sample_alone(logits, Wish("r", params)) == EOS[1]


def test_an_end_id_that_ends_nothing_is_not_barred() -> None:
    """With ignore_eos the minimum bars stop ids only."""
    params = SamplingParams(top_k=1, min_new_tokens=3, ignore_eos=True, stop_token_ids=(9,))
    logits = torch.zeros(VOCAB)
    logits[9], logits[EOS[0]] = 5.0, 4.0
    assert sample_alone(logits, Wish("r", params)) == EOS[0]

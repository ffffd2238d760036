# SPDX-License-Identifier: MIT
"""Rows to sample from, as the plane would gather them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.torch_plane.sampler import Sampler, SamplingRows
from tokenspeed_core.torch_plane.seated import Seats
from tokenspeed_hookspecs import AdmittedRequest, Batch, LogprobOptions, SamplingParams

CPU = torch.device("cpu")
EOS = (2, 3)


@frozen
class Wish:
    """A request that is about to sample its output token `index`."""

    name: str
    sampling: SamplingParams
    index: int = 0
    prompt: tuple[int, ...] = (5, 6)


def batch_of(names: Sequence[str], slots: Sequence[int], *, prefix: int, length: int) -> Batch:
    """Extend rows of `length` tokens each that complete their prompts."""
    count = len(names)
    return Batch(
        request_ids=list(names),
        slots=np.array(slots),
        incarnations=[1] * count,
        input_lengths=[length] * count,
        num_extends=count,
        extend_prefix_lens=[prefix] * count,
        extend_replay_lens=[0] * count,
        prefill_lengths=[prefix + length] * count,
        input_ids=[7] * (length * count),
        shifted_input_ids=[-1] * (length * count),
        decode_input_ids=[],
        block_tables={},
        num_tokens=length * count,
    )


class Table:
    """A sampler with its seats, for a vocabulary of `vocab` tokens."""

    def __init__(self, vocab: int, num_slots: int = 64) -> None:
        self.seats = Seats(num_slots, vocab_size=vocab, eos_token_ids=EOS)
        self.sampler = Sampler(vocab, longest=640, device=CPU)

    def rows(self, wishes: Sequence[Wish]) -> SamplingRows:
        """Seat the wishes' requests in slots 1, 2, ... and gather their rows."""
        for wish in wishes:
            logprobs = LogprobOptions()
            self.seats.admit(
                AdmittedRequest(wish.name, wish.prompt, wish.sampling, logprobs, features={})
            )
        slots = list(range(1, len(wishes) + 1))
        for wish, slot in zip(wishes, slots, strict=True):
            length = len(wish.prompt) + wish.index
            for seated in self.seats.seat(batch_of([wish.name], [slot], prefix=0, length=length)):
                self.sampler.begin(seated)
        occupants = [self.seats.occupants[slot] for slot in slots]
        requests = [seated for seated in occupants if seated is not None]
        return SamplingRows(
            requests=requests,
            columns=self.seats.columns[slots],
            samples=np.ones(len(slots), dtype=bool),
            given=np.full(len(slots), -1),
        )

    def sample(self, logits: Tensor, wishes: Sequence[Wish]) -> list[int]:
        """Sample one token a wish from logits [wishes, vocab]."""
        sampled = self.sampler.sample(logits, self.rows(wishes))
        assert not sampled.is_bad.any()
        tokens: list[int] = sampled.tokens.tolist()
        return tokens


def sample_alone(logits: Tensor, wish: Wish) -> int:
    """Sample one token in a table of its own."""
    return Table(logits.shape[-1]).sample(logits.unsqueeze(0), [wish])[0]

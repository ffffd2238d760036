# SPDX-License-Identifier: MIT
"""How much of a model one decoder is, and what links it to the rest."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.torch_plane.device_ranks import Positions, Stages


@frozen(kw_only=True)
class DecoderPart:
    """`first_layer` is the number its first layer has in the model. A part that is not the first is
    given hidden states, one that is not the last hands them on. With `splits_vocab` its embedding
    and its head have some of the vocabulary, from `first_token` on, and `positions` the others.

    `max_positions` is the longest sequence it will see; without it the model's longest.
    """

    first_layer: int = 0
    is_first: bool = True
    is_last: bool = True
    splits_vocab: bool = False
    first_token: int = 0
    max_positions: int | None = None
    positions: Positions | None = None
    stages: Stages | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the model."""
        return self.positions is None and self.stages is None

    def embedded(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """The rows [n, hidden] of tokens; whoever does not have one adds zeros to it."""
        if self.positions is None or not self.splits_vocab:
            return functional.embedding(token_ids, table)
        rows = token_ids - self.first_token
        is_elsewhere = (rows < 0) | (rows >= len(table))
        x = functional.embedding(rows.masked_fill(is_elsewhere, 0), table)
        return self.positions.sum_(x.masked_fill_(is_elsewhere.unsqueeze(-1), 0))

    def summed(self, x: Tensor) -> Tensor:
        """A product of which each position has computed a part, in place."""
        return x if self.positions is None else self.positions.sum_(x)

    def all_logits(self, logits: Tensor) -> Tensor:
        """The whole vocabulary's logits."""
        if self.positions is None or not self.splits_vocab:
            return logits
        return self.positions.joined(logits)


WHOLE = DecoderPart()
